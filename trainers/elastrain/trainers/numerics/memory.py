"""Memory of a step's large vectors: kept by the process, and not written twice."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from typing import Any

import torch
from torch import Tensor

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # <malloc.h>
LARGE = 128 * 1024  # bytes


class LongVectors:
    """Memory of vectors that are as long as the model, apart from all smaller blocks: where one of them was
    freed, these come to lie, and the next one finds no place that is long enough. All have one length."""

    def __init__(self) -> None:
        self.kept = False  # what is freed stays, for the next one
        self._idle: list[mmap.mmap] = []

    def take(self, elements: int) -> Tensor:
        """(elements,) f32 for values that are about to be written, all of them."""
        if not self.kept or not elements or torch.get_default_device().type != "cpu":
            return blank(elements, torch.float32)
        size = elements * torch.float32.itemsize
        memory = self._idle.pop() if self._idle else None
        if memory is None or len(memory) != size:
            self._idle.clear()
            memory = _anonymous(size)
        lent = (ctypes.c_char * size).from_buffer(memory)  # lives as long as the tensor's storage
        weakref.finalize(lent, self._idle.append, memory).atexit = False
        return torch.frombuffer(lent, dtype=torch.float32)


def _anonymous(size: int) -> mmap.mmap:
    """Of huge pages, where there are any (see allocator.py)."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


long_vectors = LongVectors()  # of this process


def keep_memory() -> None:
    """Let freed memory stay with the process. A step allocates and frees the same large vectors as the one
    before; given back to the kernel and faulted in again each time, they cost more than the arithmetic."""
    long_vectors.kept = True
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_memory() -> None:
    """Give freed memory back at once. A split model brings its blocks together and drops them, in sizes that
    vary: kept by the process, what was dropped lies in pieces between what is needed, and a process of two
    took more than one that has the whole model."""
    long_vectors.kept = False
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc; a threshold that is set stays where it is
        libc.mallopt(M_MMAP_THRESHOLD, LARGE)
        libc.mallopt(M_TRIM_THRESHOLD, LARGE)


def touch(long: int, elements: int) -> None:
    """Use memory for a long vector, and for so many fp32 values, once, and keep it. What a program touches
    for the first time the kernel (and on a virtual machine its host) has to find and to clear: a joiner does
    it before the others wait for it, and not while chunks travel to it and in its first step."""
    long_vectors.take(long).zero_()
    blank(elements, torch.float32).zero_()


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
