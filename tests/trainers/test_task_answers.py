"""What a Task's methods must answer with, told by name."""

from typing import Any

import pytest
import torch
from torch import nn

from elastrain.trainers.task import Loss, Mean, Task, loss_of, metrics_of
from elastrain.trainers.training.replica import make_module


class Answers(Task):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def model(self) -> nn.Module:
        return self.answer  # type: ignore[no-any-return]

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        return self.answer  # type: ignore[no-any-return]

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Mean]:
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize("answer", [torch.zeros(()), 3, None, (torch.zeros(()), 2)])
def test_a_loss_that_is_none_is_told_with_its_type(answer: Any) -> None:
    with pytest.raises(TypeError, match=rf"Answers\.loss must return Loss.* got {type(answer).__name__}"):
        loss_of(Answers(answer), nn.Identity(), None)


@pytest.mark.parametrize(
    ("answer", "told"),
    [(None, "must return a dict, got NoneType"), ({"hits": 0.5}, "got float for 'hits'")],
)
def test_metrics_that_are_none_are_told_with_their_name(answer: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        metrics_of(Answers(answer), nn.Identity(), None)


def test_right_answers_pass() -> None:
    loss, means = Loss(torch.zeros(()), 2), {"hits": Mean(1.0, 2)}
    assert loss_of(Answers(loss), nn.Identity(), None) is loss
    assert metrics_of(Answers(means), nn.Identity(), None) is means


def test_a_model_that_is_none_is_told_with_its_type() -> None:
    with pytest.raises(TypeError, match=r"Answers\.model must return a torch nn.Module, got int"):
        make_module(Answers(5), seed=0)
