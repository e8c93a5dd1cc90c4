"""Huge pages for what a worker allocates: 2 MiB at a time instead of 4 KiB.

A step passes over hundreds of megabytes, and translating their addresses costs time; so does a joiner's first
touch of its memory, and what a killed worker leaves to the kernel: its connections close only when all of
its memory is given back. Most systems give huge pages only to who asks (transparent_hugepage: madvise);
glibc 2.35 and newer asks for a whole program if a variable says so at its start. Elsewhere nothing changes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

TUNABLES, ASK = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a program that trains. What it says of huge pages already counts."""
    said = environment.get(TUNABLES, "")
    if "glibc.malloc.hugetlb" in said:
        return dict(environment)
    return {**environment, TUNABLES: f"{said}:{ASK}" if said else ASK}


@contextlib.contextmanager
def huge_pages_for_children() -> Iterator[None]:
    """Programs that are started meanwhile, in any way, get them."""
    before = os.environ.get(TUNABLES)
    os.environ.update(with_huge_pages(os.environ))
    try:
        yield
    finally:
        if before is None:
            del os.environ[TUNABLES]
        else:
            os.environ[TUNABLES] = before
