"""Finding and making a Task: a wrong spec names its fault, a wrong Task keeps its own traceback."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastrain.trainers.task import Loss, Mean, Task, TaskNotFound, load_task
from elastrain.trainers.tasks.digits import Digits

DIGITS = "elastrain.trainers.tasks.digits:Digits"


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes modules of a user into a folder of their own, on the import path."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in [n for n in sys.modules if n.split(".")[0] in ("api", "service", "trainers")]:
        monkeypatch.delitem(sys.modules, name)  # folders of these tests; a user's process has none of them
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    yield write
    for module in set(sys.modules) - before:
        del sys.modules[module]


def test_a_built_in_task_is_made_with_its_arguments() -> None:
    task = load_task(DIGITS, {"hidden": 7, "layers": 2})
    assert isinstance(task, Digits)
    assert (task.hidden, task.layers) == (7, 2)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("digits", "not of the form module:Class"),
        (":Digits", "not of the form module:Class"),
        ("elastrain.trainers.tasks.digits:Digit", "has no class 'Digit', did you mean 'Digits'?"),
        ("elastrain.trainers.tasks.digit:Digits", "did you mean 'elastrain.trainers.tasks.digits'?"),
        ("nowhere_at_all.tasks:Mine", "no module named 'nowhere_at_all'"),
        ("pathlib:Path", "pathlib:Path is not a Task"),
        ("math:pi", "math:pi is not a Task"),
    ],
)
def test_a_task_that_is_not_there_is_named(path: str, message: str) -> None:
    with pytest.raises(TaskNotFound) as caught:
        load_task(path, {})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"hiden": 8}, "did you mean 'hidden'? (it takes: hidden, layers, channels, dropout, batch_norm)"),
        ({"colour": 8}, "unexpected keyword argument 'colour'"),
    ],
)
def test_arguments_that_the_task_does_not_take_are_named(args: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskNotFound) as caught:
        load_task(DIGITS, args)
    assert message in str(caught.value)


def test_a_missing_argument_is_named(user_code: Any) -> None:
    user_code(
        "needy.py",
        """
        from elastrain.trainers.task import Task
        class Needy(Task):
            def __init__(self, path): self.path = path
        """,
    )
    with pytest.raises(TaskNotFound, match="missing a required argument: 'path'"):
        load_task("needy:Needy", {})
    assert load_task("needy:Needy", {"path": "x"}).path == "x"  # type: ignore[attr-defined]


def test_user_code_that_lacks_a_library_raises_its_own_error(user_code: Any) -> None:
    user_code("mine/__init__.py", "")
    user_code("mine/tasks.py", "import a_library_that_is_not_installed\n")
    with pytest.raises(ModuleNotFoundError) as caught:
        load_task("mine.tasks:Mine", {})
    assert caught.value.name == "a_library_that_is_not_installed"


def test_user_code_that_fails_while_imported_keeps_its_traceback(user_code: Any) -> None:
    user_code("broken.py", "\nvalue = undefined_name\n")
    with pytest.raises(NameError, match="undefined_name") as caught:
        load_task("broken:Mine", {})
    assert caught.traceback[-1].path.name == "broken.py"
    assert caught.traceback[-1].lineno == 1


def test_user_packages_named_as_our_folders_are_the_user_s(user_code: Any) -> None:
    for name in ("api", "service", "trainers"):
        user_code(f"{name}/__init__.py", "")
    user_code(
        "trainers/tasks.py",
        """
        import api, service
        from elastrain.trainers.task import Task
        class Mine(Task):
            places = (api.__file__, service.__file__)
        """,
    )
    task = load_task("trainers.tasks:Mine", {})
    assert [Path(place).parent.name for place in task.places] == ["api", "service"]  # type: ignore[attr-defined]


def test_a_task_without_a_method_says_which() -> None:
    class Bare(Task):
        pass

    for call, method in (
        (lambda: Bare().model(), "model"),
        (lambda: Bare().dataset("train"), "dataset"),
        (lambda: Bare().loss(nn.Identity(), None), "loss"),
    ):
        with pytest.raises(NotImplementedError, match=rf"Bare .*define {method}\(self"):
            call()
    assert Bare().metrics(nn.Identity(), None) == {}


def test_a_loss_is_a_scalar_and_a_weight() -> None:
    assert Loss(torch.tensor(3.0), 4).weight == 4.0
    assert Loss(torch.tensor(3.0), torch.tensor(4)).weight == 4.0  # type: ignore[arg-type]
    for wrong, error, message in (
        ((torch.ones(3), 3), TypeError, r"scalar tensor, got of shape \(3,\)"),
        ((3.0, 3), TypeError, "scalar tensor, got 3.0"),
        ((torch.tensor(1.0), "3"), TypeError, "weight must be a number, got '3'"),
        ((torch.tensor(1.0), True), TypeError, "weight must be a number, got True"),
        ((torch.tensor(1.0), -1), ValueError, "not negative, got -1"),
        ((torch.tensor(1.0), float("nan")), ValueError, "finite"),
    ):
        with pytest.raises(error, match=message):
            Loss(*wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Mean\.weight"):
        Mean(1.0, -2)


def test_digits_splits_its_pictures_once_and_for_all() -> None:
    train, val = Digits().dataset("train"), Digits().dataset("val")
    assert train is not None
    assert val is not None
    assert (len(train), len(val)) == (1437, 360)  # type: ignore[arg-type]
    assert Digits().dataset("test") is None
    picture, digit = train[0]
    assert (picture.shape, picture.dtype, digit.dtype) == ((64,), torch.float32, torch.int64)
    assert 0 <= picture.min() <= picture.max() <= 1
    shown = {bytes(train[i][0].numpy()) for i in range(1437)}
    assert not any(bytes(val[i][0].numpy()) in shown for i in range(360)), "no picture is in both"


@pytest.mark.parametrize("channels", [0, 3])
def test_digits_sums_loss_and_hits_over_the_microbatch(channels: int) -> None:
    task = Digits(hidden=5, channels=channels, dropout=0.1, batch_norm=True)
    model, data = task.model(), task.dataset("val")
    assert data is not None
    batch = task.collate([data[i] for i in range(6)])
    loss, accuracy = task.loss(model, batch), task.metrics(model, batch)["accuracy"]
    assert (loss.weight, accuracy.weight) == (6.0, 6.0)
    assert 0 <= float(accuracy.sum) <= 6
    loss.sum.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_digits_refuses_sizes_that_make_no_model() -> None:
    for wrong in ({"hidden": 0}, {"layers": 0}, {"channels": -1}, {"dropout": 1.0}):
        with pytest.raises(ValueError, match="Digits takes hidden >= 1"):
            Digits(**wrong)  # type: ignore[arg-type]
