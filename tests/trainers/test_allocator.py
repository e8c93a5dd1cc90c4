"""The allocator of workers is asked for what they need, and nothing that an operator has said is lost."""

import os

import pytest

from elastrain.trainers.numerics.allocator import ASKED, TUNABLES, tuned, tuned_children

PAGES, CACHE = ASKED


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        ("", f"{PAGES}:{CACHE}"),
        ("glibc.malloc.check=1", f"glibc.malloc.check=1:{PAGES}:{CACHE}"),
        ("glibc.malloc.hugetlb=0", f"glibc.malloc.hugetlb=0:{CACHE}"),
        ("glibc.malloc.tcache_count=7:glibc.malloc.hugetlb=0",) * 2,
    ],
)
def test_what_an_operator_tunes_stays(said: str, becomes: str) -> None:
    assert tuned({TUNABLES: said, "OTHER": "1"}) == {TUNABLES: becomes, "OTHER": "1"}
    assert tuned({})[TUNABLES] == f"{PAGES}:{CACHE}"


def test_the_launchers_own_environment_is_as_before() -> None:
    before = dict(os.environ)
    with tuned_children():
        assert all(tunable in os.environ[TUNABLES] for tunable in ASKED)
    assert dict(os.environ) == before
