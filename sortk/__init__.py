"""sortk: Sortformer, whole. Start reading at `stages.py`."""

__version__ = "0.1.0"
