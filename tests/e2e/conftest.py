"""One service for most of these tests: starting Ray takes seconds, and a job on it some more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.house import DIGITS, SHORT, House, Houses, Watched, digests
from elastrain.client import Job, NotFound


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A HOME on which nothing is left running in the end, whatever the tests did."""
    path = tmp_path_factory.mktemp("home")
    yield path
    assert House(path, None).cli("down").returncode == 0  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def houses(home: Path) -> Iterator[Houses]:
    houses = Houses(home)
    yield houses
    assert houses.now.server.stop() == 0, houses.now.server.said


@pytest.fixture
def house(houses: Houses) -> House:
    """A running service."""
    return houses.now


@pytest.fixture
def submit(house: House) -> Iterator[Callable[..., Watched]]:
    """Submits the short digits job; what a failed test leaves running is cancelled."""
    watched: list[Watched] = []

    def submitted(*overrides: str, workers: str = "{min: 1, max: 2}") -> Watched:
        job = house.client.submit(DIGITS, overrides=[*SHORT, f"workers={workers}", *overrides])
        watched.append(Watched(job))
        return watched[-1]

    yield submitted
    for one in watched:
        with contextlib.suppress(NotFound):  # the test deleted it
            if "cancel" in Job.refresh(one.job).data["allowed_actions"]:
                one.job.cancel().wait(60)


@pytest.fixture(scope="session")
def undisturbed(houses: Houses) -> dict[str, object]:
    """The short digits job with one worker and no fault: the yardstick of the others."""
    job = houses.now.client.submit(DIGITS, overrides=[*SHORT, "workers={min: 1, max: 1}"])
    return digests(Watched(job).ended())
