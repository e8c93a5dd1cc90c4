"""The whole engine under fire, in short; `make chaos` is the long version."""

import random
from pathlib import Path

import pytest

from engine.chaos import STRATEGIES, Chaos, main, under_fire
from engine.checks import check, check_nobody_is_left, check_steps
from engine.harness import probe, run, toy

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(("workers", "seed"), [(2, 1), (4, 2)])
def test_workers_that_were_killed_stopped_added_and_removed_changed_nothing(
    tmp_path: Path, workers: int, seed: int
) -> None:
    chaos = under_fire(tmp_path, workers, seed, generations=8)
    print(chaos.summary())
    assert len(chaos.of_kind("generation")) > 8 and chaos.counts["kills"] > 0


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "all_reduce"])
def test_every_strategy_under_fire_kept_what_it_promises(tmp_path: Path, strategy: str) -> None:
    chaos = under_fire(tmp_path, 3, seed=7, generations=5, strategy=strategy)
    print(chaos.summary())
    assert len(chaos.of_kind("generation")) > 5 and chaos.counts["kills"] > 0


class EachOnce(Chaos):
    """Every strike of the table, in its order."""

    async def _havoc(self, draw: random.Random) -> None:
        self._listen()
        for strike in self.strikes():
            await self._some_steps(draw)
            strike(draw)
        self.attempt.finish("paused")


def test_every_strike_that_may_be_drawn_can_be_struck(tmp_path: Path) -> None:
    chaos = under_fire(tmp_path, 3, seed=5, kind=EachOnce)
    assert chaos.counts["requests"] == 1


def test_a_job_under_fire_until_its_last_step_ended_by_itself(tmp_path: Path) -> None:
    spec = toy(steps=80)
    chaos = Chaos(tmp_path / "many", spec, (1, 4), seed=3).go()
    assert chaos.outcome is not None and chaos.outcome.outcome == "succeeded"
    check(chaos, run(tmp_path / "one", spec))
    assert chaos.counts["kills"] > 0


def test_the_parameters_themselves_say_that_every_sample_was_used_once_per_epoch(tmp_path: Path) -> None:
    """Sample i moves the weight s{i} and no other: by -1/4 each time that it is used."""
    names = [f"s{i}" for i in range(20)]
    spec = probe(
        [[float(i == j) for j in range(len(names))] for i in range(len(names))],
        args={"sizes": dict.fromkeys(names, 1)},
        batch={"size": 4, "microbatch": 1},
        epochs=20,
        shuffle=True,
        workers={"min": 1, "max": 4},
        checkpoint={"every_steps": 10},
    )
    chaos = Chaos(tmp_path, spec, (1, 4), seed=4).go()
    check_steps(chaos, 100)
    check_nobody_is_left(chaos)
    used = {name: -float(weight) for name, weight in chaos.tensors().items()}
    assert used == dict.fromkeys(names, 20 / 4)


def test_make_chaos_plays_what_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "--generations",
        "2",
        "--seed",
        "3",
        "--workers",
        "2",
        "--strategy",
        "bf16",
        "--keep",
        str(tmp_path),
    ]
    monkeypatch.setattr("sys.argv", ["chaos", *asked])
    main()
    assert "bf16, seed 3: steps " in (said := capsys.readouterr().out) and "digest equal" in said
