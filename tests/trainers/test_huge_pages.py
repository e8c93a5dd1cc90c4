"""Huge pages are asked for, and nothing that an operator has said is lost."""

import os

from elastrain.trainers.numerics.huge_pages import ASK, TUNABLES, huge_pages_for_children, with_huge_pages


def test_what_an_operator_tunes_stays() -> None:
    assert with_huge_pages({})[TUNABLES] == ASK
    assert with_huge_pages({TUNABLES: "glibc.malloc.check=1"})[TUNABLES] == f"glibc.malloc.check=1:{ASK}"
    off = {TUNABLES: "glibc.malloc.hugetlb=0"}
    assert with_huge_pages(off) == off


def test_the_launchers_own_environment_is_as_before() -> None:
    before = dict(os.environ)
    with huge_pages_for_children():
        assert ASK in os.environ[TUNABLES]
    assert dict(os.environ) == before
