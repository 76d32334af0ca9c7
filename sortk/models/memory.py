"""Memory of the process, as models use it on a CPU.

The tensors of a layer, some megabytes each, are allocated and freed thousands of times in a recording or a training. By
default the C library returns each one to the system at once and takes fresh pages, which are zeroed one by one, for the
next: a tenth of all time, in the 123M model and in the training of a small one.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
LARGE = 1 << 30  # bytes
STEP = 1 << 26


def keep_freed_memory() -> None:
    """Keep freed memory in this process from now on; without glibc, nothing happens."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, LARGE), (M_TOP_PAD, STEP)):
            mallopt(parameter, value)


def give_back_freed_memory() -> None:
    """Return freed memory to the system. After a model was freed it is hundreds of megabytes, which a process that is
    about to end would hold while it pages in its libraries once more, to unload them."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)
