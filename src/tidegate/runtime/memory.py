"""Keep what a node frees, to use it again.

A node computes with arrays of half a megabyte that live for a moment. The C library keeps one or two of that size
and returns the others to the system, only to ask for them again; then they come page by page, and a small
calculation takes six times as long. Arrow has its own allocator; this is for NumPy and Python.
"""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD = -1  # the numbers of malloc.h
MMAP_THRESHOLD = -3

KEPT_BYTES = 64 << 20
"""So much freed memory stays with the process, for each of the C library's heaps: as large as a thread's heap can be."""
LARGE_BYTES = 32 << 20
"""Larger pieces are the system's own affair; the C library takes no higher limit."""

CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Tell the C library of this process; False where it can't be told, or the user has told it something."""
    if any(name in os.environ for name in CHOSEN_BY_USER):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGE_BYTES)) and bool(mallopt(TRIM_THRESHOLD, KEPT_BYTES))
