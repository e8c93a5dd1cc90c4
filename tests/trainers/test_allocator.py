"""The allocator of workers is asked for what they need, and nothing that an operator has said is lost."""

import os

import pytest

from elastrain.trainers.numerics.allocator import ASKED, TUNABLES, tuned, tuned_children

[PAGES] = ASKED


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        ("", PAGES),
        ("glibc.malloc.check=1", f"glibc.malloc.check=1:{PAGES}"),
        ("glibc.malloc.hugetlb=0",) * 2,
        ("glibc.malloc.tcache_count=7:glibc.malloc.hugetlb=0",) * 2,
    ],
)
def test_what_an_operator_tunes_stays(said: str, becomes: str) -> None:
    assert tuned({TUNABLES: said, "OTHER": "1"}) == {TUNABLES: becomes, "OTHER": "1"}
    assert tuned({})[TUNABLES] == PAGES


def test_the_launchers_own_environment_is_as_before() -> None:
    before = dict(os.environ)
    with tuned_children():
        assert all(tunable in os.environ[TUNABLES] for tunable in ASKED)
    assert dict(os.environ) == before
