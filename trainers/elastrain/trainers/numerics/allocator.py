"""What a process that trains asks of its allocator: glibc hears it from a variable at the program's start.

*Huge pages*, 2 MiB at a time instead of 4 KiB. A step passes over hundreds of megabytes, and translating
their addresses costs time; so does a joiner's first touch of its memory, and what a killed worker leaves to
the kernel: its connections close only when all of its memory is given back. Most systems give huge pages only
to who asks (transparent_hugepage: madvise).

The cache of small blocks by thread stays on. Without it a worker of four took 27 MB less, but with powersgd,
whose vectors are of many sizes, a process grew by 10 MB a second (decision 41).

Elsewhere, and before glibc 2.35, nothing changes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

TUNABLES = "GLIBC_TUNABLES"
ASKED = ("glibc.malloc.hugetlb=1",)


def tuned(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a program that trains. What it says already counts."""
    said = environment.get(TUNABLES, "")
    asked = [tunable for tunable in ASKED if tunable.partition("=")[0] not in said]
    return {**environment, TUNABLES: ":".join(filter(None, [said, *asked]))}


@contextlib.contextmanager
def tuned_children() -> Iterator[None]:
    """Programs that are started meanwhile, in any way, are tuned."""
    before = os.environ.get(TUNABLES)
    os.environ.update(tuned(os.environ))
    try:
        yield
    finally:
        if before is None:
            del os.environ[TUNABLES]
        else:
            os.environ[TUNABLES] = before
