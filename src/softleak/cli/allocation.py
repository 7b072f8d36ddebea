"""This module has the C library keep the memory that tensors free, for the tensors that follow.

An inversion makes and drops matrices of tens of megabytes. glibc gives each of them back to the
kernel at once, and the kernel clears the pages of the next: a fifth of an audit's processor time.
"""

from __future__ import annotations

import ctypes
import sys

# Parameters of glibc's mallopt, from malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
KEPT_BYTES = 2**30


def keep_freed_memory() -> bool:
    """Have malloc keep up to a gigabyte of freed memory; return whether this system can.

    It changes the whole process, so that only the command line calls it.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # a C library other than glibc
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
