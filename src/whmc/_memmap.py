"""Arrays that lie in a file and are larger than the memory: read in pieces, and given back after each."""

import mmap
from typing import Any

import numpy as np

PIECE = 1 << 23
"""Bytes that are read at a time."""


def release(array: Any) -> None:
    """Gives the pages of an array in a file back to the system; they are read again when asked for."""
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    pages = getattr(array, "_mmap", None)
    if pages is not None and getattr(array, "mode", "") == "r" and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def pieces(num: int, width: int) -> list[slice]:
    """Slices of `num` rows of `width` bytes each, a piece at a time."""
    step = max(1, PIECE // max(width, 1))
    return [slice(start, min(start + step, num)) for start in range(0, num, step)]
