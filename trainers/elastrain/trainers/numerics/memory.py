"""Memory of a step's large vectors: kept by the process, and not written twice."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # <malloc.h>
LARGE = 128 * 1024  # bytes


def keep_memory() -> None:
    """Let freed memory stay with the process. A step allocates and frees the same large vectors as the one
    before; given back to the kernel and faulted in again each time, they cost more than the arithmetic."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_memory() -> None:
    """Give freed memory back at once. A split model brings its blocks together and drops them, in sizes that
    vary: kept by the process, what was dropped lies in pieces between what is needed, and a process of two
    took more than one that has the whole model."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc; a threshold that is set stays where it is
        libc.mallopt(M_MMAP_THRESHOLD, LARGE)
        libc.mallopt(M_TRIM_THRESHOLD, LARGE)


def touch(elements: int) -> None:
    """Use memory for so many fp32 values once, and keep it. What a program touches for the first time the
    kernel (and on a virtual machine its host) has to find and to clear: a joiner does it before the others
    wait for it, and not while chunks travel to it and in its first step."""
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
