"""Prometheus' own tool reads the rules, and each alert fires when it should and only then."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from debian import program
from helm.rendering import CHART, render

pytestmark = pytest.mark.helm

RULES = CHART / "rules/elastrain.yaml"
CASES = Path(__file__).with_name("alerts.test.yaml")


@pytest.fixture(scope="module")
def promtool() -> str:
    return program("promtool", package="prometheus")


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_when_it_should_and_only_then(promtool: str) -> None:
    run(promtool, "test", "rules", CASES)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_quiet_throughout() -> None:
    alerts = {
        rule["alert"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    fires: set[str] = set()
    quiet: set[str] = set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        looks: list[dict[str, Any]] = case["alert_rule_test"]
        loud = {look["alertname"] for look in looks if look["exp_alerts"]}
        fires |= loud
        quiet |= {look["alertname"] for look in looks} - loud
    assert fires == quiet == alerts


def test_prometheus_takes_the_rules_as_they_are_and_as_the_chart_writes_them(
    promtool: str, tmp_path: Path
) -> None:
    values = {"metrics": {"prometheusRule": {"enabled": True, "runbookUrl": "https://docs.example.com"}}}
    written = tmp_path / "rendered.yaml"
    written.write_text(yaml.safe_dump(render(values).one("PrometheusRule")["spec"]))
    for rules in (RULES, written):
        run(promtool, "check", "rules", rules)
