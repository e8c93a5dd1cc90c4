"""Dashboards, alerts, runbooks and docs speak of metrics that the code exports, in expressions that parse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.core import Metric

from elastrain.service.meters import Meters
from world import World

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "elastrain"
RULES = CHART / "rules" / "elastrain.yaml"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
# what whoever scrapes adds
SCRAPED = {"namespace", "instance", "pod", "le"}
RAY = "trainers/elastrain/trainers/launching/ray_metrics.py"


def suffixes(metric: Metric) -> set[str]:
    if metric.type == "histogram":
        return {f"{metric.name}_{end}" for end in ("bucket", "count", "sum")}
    return {f"{metric.name}_total"} if metric.type == "counter" else {metric.name}


@cache
def ray_names() -> dict[str, set[str]]:
    """As Ray's metrics agent serves them. Read from the source: importing it needs Ray."""
    text = (ROOT / RAY).read_text()
    tables: dict[str, Any] = {}
    for name in ("LABELS", "GAUGES", "COUNTERS"):
        match = re.search(rf"^{name} = (\(.*?\)|\{{.*?^\}})$", text, re.MULTILINE | re.DOTALL)
        assert match is not None, name
        tables[name] = eval(match[1], {})
    names = {f"ray_{name}" for name in tables["GAUGES"]} | {
        f"ray_{name}_total" for name in tables["COUNTERS"]
    }
    return {name: set(tables["LABELS"]) for name in names}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """{name of a sample: its labels}, of a service that looks after a job"""
    world = World(tmp_path_factory.mktemp("world"))
    world.running()
    world.round()
    families = [*world.meters.registry.collect(), *world.control.known.collect()]
    world.store.close()
    labels = {
        meter._name: set(meter._labelnames)  # type: ignore[attr-defined]
        for meter in vars(Meters()).values()
        if hasattr(meter, "_labelnames")
    }
    names = {}
    for metric in families:
        seen = {label for sample in metric.samples for label in sample.labels}
        for name in suffixes(metric):
            names[name] = seen | labels.get(metric.name, set())
    return names | ray_names()


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions(path: Path) -> Iterator[tuple[str, str]]:
    """(where it stands, expression)"""
    if path == RULES:
        for rule in rules():
            yield rule.get("alert") or rule["record"], rule["expr"]
        return
    dashboard = json.loads(path.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert match is not None, variable["query"]
            yield variable["name"], f"count by ({match[2]}) ({match[1]})"


@pytest.mark.parametrize("path", [*DASHBOARDS, RULES], ids=lambda path: path.name)
def test_every_expression_parses_and_names_metrics_and_labels_that_exist(
    path: Path, exported: dict[str, set[str]]
) -> None:
    found = list(expressions(path))
    assert len(found) >= 7
    for where, expression in found:
        plain = expression.replace("$__rate_interval", "5m")
        promql_parser.parse(plain)  # raises ValueError
        names = set(re.findall(r"\b(?:ray_)?elastrain[a-z0-9_:]*", plain))
        assert names, f"{where}: {expression}"
        assert names <= exported.keys() | recorded(), (where, names - exported.keys() - recorded())
        used = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', plain))
        for grouped in re.findall(r"\bby \(([\w, ]*)\)", plain):
            used |= set(grouped.split(", "))
        known = SCRAPED.union(*(exported.get(name, set()) for name in names))
        assert used <= known, (where, used - known)


def test_there_are_two_dashboards_of_the_same_make() -> None:
    assert [path.name for path in DASHBOARDS] == ["job.json", "operator.json"]
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids)) and dashboard["uid"] == f"elastrain-{path.stem}"
        for panel in dashboard["panels"]:
            if panel["type"] != "row":
                assert panel["datasource"]["uid"] == "${datasource}", "whoever imports it picks the source"
                assert panel["fieldConfig"]["defaults"]["unit"]


def test_every_metric_of_the_service_is_in_the_docs_and_nothing_else_is(
    exported: dict[str, set[str]],
) -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text()
    named = set(re.findall(r"\belastrain_[a-z0-9_]+", text)) - {"elastrain_job_step"}
    ours = {re.sub(r"_(bucket|sum|count)$", "", n) for n in exported if not n.startswith("ray_")}
    shown = {name for name in ours if name in named}
    assert ours == shown, f"not in docs/monitoring.md: {sorted(ours - shown)}"
    assert named <= ours, f"in docs/monitoring.md only: {sorted(named - ours)}"
    for name in ray_names():
        assert name in text or name.removeprefix("ray_elastrain_job") in text, name


def test_every_alert_has_a_page_that_names_it_and_says_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) >= 4
    for rule in alerts:
        page = ROOT / rule["annotations"]["runbook"]
        text = page.read_text()
        assert f"`{rule['alert']}`" in text and "what to do" in text, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["for"] and rule["annotations"]["summary"].endswith(".")
    pages = {ROOT / rule["annotations"]["runbook"] for rule in alerts}
    assert pages == set((ROOT / "docs" / "runbooks").glob("*.md")), "a page that no alert leads to"


def test_a_scrape_before_the_first_round_holds_what_the_alerts_look_at(tmp_path: Path) -> None:
    """A counter that only comes with its first error has no increase at that error."""
    world = World(tmp_path)
    families = [*world.meters.registry.collect(), *world.control.known.collect()]
    names = {sample.name for metric in families for sample in metric.samples}
    world.store.close()
    late = {"elastrain_reconciler_lag_seconds"}  # its absence is an alert itself
    for where, expression in expressions(RULES):
        for name in re.findall(r"\belastrain_[a-z0-9_]*", expression):
            assert name in names | late, (where, name)
