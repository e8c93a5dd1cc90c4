"""What a person reads first when their code fails."""

import sys

import pytest
import torch
from torch import nn

from elastrain.trainers.exchange.collectives import Broken
from elastrain.trainers.task import Loss, Task, loss_of
from elastrain.trainers.training.faults import UserFault, blamed_on_user, describe


def _divide() -> None:
    1 / 0  # noqa: B018


def test_the_error_and_its_line_come_first() -> None:
    with pytest.raises(UserFault) as caught, blamed_on_user("compute", 3, 1):
        _divide()
    fault = caught.value.fault
    assert fault.error.startswith("ZeroDivisionError: division by zero (test_faults.py:")
    assert fault.place == ("compute", 3, 1) and not fault.at_once


class Divides(Task):
    def loss(self, model: nn.Module, batch: object) -> Loss:
        _divide()
        return Loss(torch.zeros(()), 1.0)


def test_the_engines_own_lines_are_not_shown() -> None:
    with pytest.raises(UserFault) as caught, blamed_on_user("compute", 3, 1):
        loss_of(Divides(), nn.Identity(), None)
    assert "in _divide" in caught.value.fault.traceback
    assert "elastrain/trainers/" not in caught.value.fault.traceback


def test_an_exit_in_user_code_is_an_error_of_the_user() -> None:
    with pytest.raises(UserFault) as caught, blamed_on_user("start"):
        sys.exit(7)
    assert caught.value.fault.error.startswith("SystemExit: 7 (test_faults.py:")


def test_a_peer_that_is_gone_is_not_the_users_fault() -> None:
    with pytest.raises(Broken), blamed_on_user("compute"):
        raise Broken("connection closed")


def test_a_syntax_error_names_the_users_file() -> None:
    try:
        compile("def broken(:", "their_task.py", "exec")
    except SyntaxError as error:
        fault = describe(error, "start")
    assert "(their_task.py:1)" in fault.error and fault.at_once
