"""Freed memory stays with the process, or goes back to the system: as told here.

A layer's tensors, some megabytes each, are born and die thousands of times in a recording. The C library by default
gives each one back to the system at once, and takes fresh pages, which are zeroed one by one, for the next: a tenth of
all time in the 123M model on one core.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
LARGE = 1 << 30  # bytes
STEP = 1 << 26


def keep_freed_memory() -> None:
    """For this process from now on; where the C library is not glibc, nothing happens."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, LARGE), (M_TOP_PAD, STEP)):
            mallopt(parameter, value)


def give_back_freed_memory() -> None:
    """All that is free now. After a whole model was freed it is hundreds of megabytes, which a process that is about
    to end would hold while it pages in its libraries once more, to unload them."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)
