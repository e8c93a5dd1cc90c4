"""docs/spec.md says what the spec is, and docs/own-model.md what really trains."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from torch.utils.data import default_collate

from elastrain.trainers.spec import parse_spec
from elastrain.trainers.task import load_task, loss_of, metrics_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


def loaded(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_page_of_the_spec_was_not_behind_the_spec() -> None:
    page = loaded("spec_page", DOCS / "spec_page.py")
    assert page.PAGE.read_text() == page.page(), "run `make spec-page`"


def test_the_smallest_spec_of_the_page_is_accepted() -> None:
    (text,) = blocks("spec.md", "yaml")
    assert parse_spec(yaml.safe_load(text)).epochs == 20


def test_the_model_of_the_page_for_newcomers_can_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wave.py").write_text(blocks("own-model.md", "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    spec = parse_spec(yaml.safe_load(blocks("own-model.md", "yaml")[0]))
    task = load_task(spec.task, spec.task_args)
    model: Any = task.model()
    data: Any = task.dataset("train")
    batch = task.collate([data[i] for i in range(spec.batch.microbatch)])
    assert len(batch[0]) == len(default_collate([data[0]])[0]) * spec.batch.microbatch
    before = loss_of(task, model, batch)
    assert before.weight == spec.batch.microbatch
    optimizer = torch.optim.Adam(model.parameters(), spec.optimizer.lr)
    for _ in range(20):
        optimizer.zero_grad()
        loss_of(task, model, batch).sum.backward()
        optimizer.step()
    assert loss_of(task, model, batch).sum.item() < before.sum.item()
    assert metrics_of(task, model, batch)["error"].weight == spec.batch.microbatch
