"""What `elastrain doctor` says of a service in order, and of one that is not."""

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from elastrain.api.cli.app import app
from elastrain.service.control import Control
from elastrain.service.store import installation
from serving import Live

Run = Callable[..., Result]
FOUND = {"python": "3.11.2", "elastrain": "0.1.0", "ray": "2.60.0", "torch": "2.13.0"}
FOUND |= {"storage": None, "service": None}  # type: ignore[dict-item]


@pytest.fixture
def run(live: Live, token: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ELASTRAIN_URL", live.url)
    monkeypatch.setenv("ELASTRAIN_TOKEN", token)
    live.control._readiness._max_age_s = 0.0

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return result

    return run


def seen(control: Control, differences: list[str]) -> None:
    """As the reconciler writes it down."""
    now = control.clock.now()
    with control.store.write() as tx:
        installation.write(tx, "reconciler", True, now)
        value = {"mark": "m", "found": FOUND, "differences": differences, "detail": None}
        installation.write(tx, "cluster_check", value, now)


def test_a_part_that_does_not_move_is_named_and_the_exit_code_is_1(run: Run) -> None:
    said = run("doctor", code=1).stdout
    assert "WRONG" in said and "not completed a round" in said and "nobody has looked yet" in said


def test_everything_in_order_exits_with_0(run: Run, control: Control) -> None:
    seen(control, [])
    said = run("doctor").stdout
    assert "WRONG" not in said and "torch 2.13.0" in said and "role admin" in said
    assert json.loads(run("doctor", "-o", "json").stdout)["ok"] is True


def test_a_cluster_that_differs_is_named(run: Run, control: Control) -> None:
    seen(control, ["torch is not installed on the cluster, where workers need it"])
    answer = json.loads(run("doctor", "-o", "json", code=1).stdout)
    wrong = [item for item in answer["items"] if not item["ok"]]
    assert {item["what"] for item in wrong} == {"ray", "cluster"}
    assert all("torch is not installed" in item["detail"] for item in wrong)
