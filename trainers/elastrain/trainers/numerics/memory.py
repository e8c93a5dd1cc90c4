"""Memory of a step's large vectors: kept by the process, and not written twice."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # <malloc.h>
LARGE = 128 * 1024  # bytes
HUGE_PAGE = 2 * 1024 * 1024  # bytes


class KeptBlocks:
    """Blocks of memory for vectors of some megabytes, apart from the allocator's (decision 42).

    Among blocks of all sizes, what a large one leaves is filled with small ones, so the next large one finds
    no place, and the process takes memory that nobody has touched yet. Here a block that comes back is kept
    for the next vector that needs half of it or more. It is for what every step or every checkpoint has
    alike: what comes once, such as chunks that change hands, finds touched memory in the allocator's heap.
    """

    LEAST = HUGE_PAGE  # bytes of a vector; of smaller ones there are many, of many sizes
    UNUSED = 100  # takes, after which an idle block goes once another one is needed

    def __init__(self) -> None:
        self.open = False  # to vectors; else all are the allocator's
        self._idle: list[mmap.mmap] = []
        self._used: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()
        self._takes = 0
        self._taking = threading.Lock()  # not to give back: the garbage collector may do so at any moment

    def holds(self, size: int, device: torch.device | None) -> bool:
        """Is a vector of so many bytes one for here?"""
        kind = (device or torch.get_default_device()).type
        return self.open and size >= self.LEAST and kind == "cpu"

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """(elements,) for values that are about to be written. The block is back when nobody has the tensor,
        or a view of it, any more."""
        size = -(-elements * dtype.itemsize // HUGE_PAGE) * HUGE_PAGE
        with self._taking:
            block = self._find(size) or self._another(size)
            self._takes += 1
            self._used[block] = self._takes
        lent = (ctypes.c_char * size).from_buffer(block)  # lives as long as the tensor's memory
        weakref.finalize(lent, self._give_back, block).atexit = False
        return torch.frombuffer(lent, dtype=dtype, count=elements)

    def _find(self, size: int) -> mmap.mmap | None:
        fits = [block for block in self._idle if size <= len(block) <= 2 * size]
        # of equal ones the last that was used, so that those which are too many get old
        block = min(fits, key=lambda block: (len(block), -self._used[block]), default=None)
        if block is not None:
            self._idle.remove(block)
        return block

    def _another(self, size: int) -> mmap.mmap:
        for block in [b for b in self._idle if self._takes - self._used[b] >= self.UNUSED]:
            self._idle.remove(block)
        return _from_the_kernel(size)

    def _give_back(self, block: mmap.mmap) -> None:
        if self.open:
            self._idle.append(block)

    def close(self) -> None:
        self.open = False
        self._idle.clear()


def _from_the_kernel(size: int) -> mmap.mmap:
    """Of huge pages, where there are any (see allocator.py)."""
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


kept_blocks = KeptBlocks()  # of this process


def keep_memory() -> None:
    """Let freed memory stay with the process. A step allocates and frees the same large vectors as the one
    before; given back to the kernel and faulted in again each time, they cost more than the arithmetic."""
    kept_blocks.open = True
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_memory() -> None:
    """Give freed memory back at once. A split model brings its blocks together and drops them, in sizes that
    vary: kept by the process, what was dropped lies in pieces between what is needed, and a process of two
    took more than one that has the whole model."""
    kept_blocks.close()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc; a threshold that is set stays where it is
        libc.mallopt(M_MMAP_THRESHOLD, LARGE)
        libc.mallopt(M_TRIM_THRESHOLD, LARGE)


def touch(again: Sequence[int], once: int) -> None:
    """Use memory for vectors of so many fp32 values as each step needs them, and for so many others; and keep
    it. What a program touches for the first time the kernel (and on a virtual machine its host) has to find
    and to clear: a joiner does it before the others wait for it, and not while chunks travel to it and in its
    first step."""
    vectors = [blank_again(elements, torch.float32) for elements in again]
    for vector in [*vectors, blank(once, torch.float32)]:
        vector.zero_()


def blank_again(elements: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """As `blank`, for what every step needs: of the kept blocks, if it is large."""
    if kept_blocks.holds(elements * dtype.itemsize, device):
        return kept_blocks.take(elements, dtype)
    return blank(elements, dtype, device)


def copy_again(values: Tensor) -> Tensor:
    """A copy, as every checkpoint makes it: of the kept blocks, if it is large."""
    return blank_again(values.numel(), values.dtype, values.device).view(values.shape).copy_(values)


def blank(elements: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """(elements,) for values that are about to be written, all of them. Deterministic mode fills what
    torch.empty returns, so that a read of what nobody wrote is at least the same read everywhere: right for a
    Task's code, a second pass over memory for ours."""
    settings: Any = torch.utils.deterministic
    fill, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
    try:
        return torch.empty(elements, dtype=dtype, device=device)
    finally:
        settings.fill_uninitialized_memory = fill
