"""Linear probes: parameters whose gradients the data chooses."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from elastrain.trainers.task import Loss, Mean, Task


class Rows(Dataset[Any]):
    """Sample i is (i, values[i])."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, torch.tensor(self.values[index], dtype=torch.float32)


class Weights(nn.Module):
    """Named parameters of given sizes, all beginning at `start`."""

    def __init__(self, sizes: dict[str, int], start: float, frozen: tuple[str, ...] = ()) -> None:
        super().__init__()
        for name, size in sizes.items():
            parameter = nn.Parameter(torch.full((size,), start), requires_grad=name not in frozen)
            self.register_parameter(name, parameter)


class Probe(Task):
    """loss = sum over samples of c . w: the gradient of each weight is the mean of its column of `rows`.

    rows: one number or one list per sample, by parameter. unused: parameters that the loss never touches.
    """

    def __init__(
        self,
        rows: list[Any],
        sizes: dict[str, int] | None = None,
        start: float = 0.0,
        unused: list[str] | None = None,
        frozen: list[str] | None = None,
        scale_loss: float = 1.0,
    ) -> None:
        self.rows, self.sizes, self.start = rows, sizes or {"w": 1}, start
        self.unused, self.frozen, self.scale_loss = unused or [], frozen or [], scale_loss

    def model(self) -> nn.Module:
        return Weights(self.sizes, self.start, tuple(self.frozen))

    def dataset(self, split: str) -> Dataset[Any] | None:
        return Rows(self.rows) if split == "train" else None

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        _, columns = batch
        columns = columns.reshape(len(columns), -1)  # (k, parameters)
        names = [n for n in self.sizes if n not in self.unused]
        total = torch.zeros(())
        for at, name in enumerate(names):
            column = columns[:, at if columns.shape[1] > 1 else 0]
            total = total + (model.get_parameter(name).sum() * column).sum()
        return Loss(total * self.scale_loss, len(columns))


class Signed(Probe):
    """Leaves its sample numbers in the log; takes its time to set itself up, and while the brake is there."""

    def __init__(self, rows: list[Any], brake: str, **more: Any) -> None:
        super().__init__(rows, **more)
        self.brake = Path(brake)

    def model(self) -> nn.Module:
        time.sleep(0.05)
        print("set up", flush=True)
        return super().model()

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        print("read", *batch[0].tolist(), flush=True)
        time.sleep(0.05 if self.brake.exists() else 0.005)
        return super().loss(model, batch)


class Frosty(Probe):
    """A parameter that samples first..last leave out: it is frozen meanwhile."""

    def __init__(self, rows: list[Any], frozen: str, first: int, last: int, **more: Any) -> None:
        super().__init__(rows, **more)
        self.name, self.cold = frozen, range(first, last + 1)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        self.unused = [self.name] if int(batch[0].min()) in self.cold else []
        return super().loss(model, batch)


class Quadratic(Probe):
    """loss = sum over samples of (w - c)^2 / 2: the gradient is w minus the mean of the data."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        _, targets = batch
        gap = model.get_parameter("w") - targets.reshape(-1, 1)
        return Loss(gap.pow(2).sum() / 2, len(targets))


class Sparse(Task):
    """An embedding whose gradient is sparse; sample i looks up ids[i]."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def model(self) -> nn.Module:
        embedding = nn.Embedding(9, 1, sparse=True)
        nn.init.zeros_(embedding.weight)
        return embedding

    def dataset(self, split: str) -> Dataset[Any] | None:
        return Rows(self.ids) if split == "train" else None

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        return Loss(model(batch[1].long()).sum(), len(batch[1]))


class Normed(Task):
    """BatchNorm over inputs that differ between microbatches (cases D16)."""

    def __init__(self, rows: list[float]) -> None:
        self.rows = rows

    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(1, momentum=0.1), nn.Linear(1, 1))

    def dataset(self, split: str) -> Dataset[Any] | None:
        return Rows(self.rows)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        out = model(batch[1].reshape(-1, 1))
        return Loss(out.pow(2).sum(), len(out))

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Mean]:
        return {"out": Mean(model(batch[1].reshape(-1, 1)).sum(), len(batch[1]))}


class Drawing(Probe):
    """Prints one draw of each generator per microbatch (cases C09)."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        import random

        import numpy

        ids = batch[0].tolist()
        print("draw", ids, random.random(), numpy.random.rand(), torch.rand(()).item(), flush=True)
        return super().loss(model, batch)


class Faulty(Probe):
    """Misbehaves when it computes a sample: raises, vanishes, or returns NaN."""

    def __init__(
        self, rows: list[Any], sample: int, how: str, once: str | None = None, sleep_s: float = 0.0
    ) -> None:
        super().__init__(rows)
        self.sample, self.how, self.once, self.sleep_s = sample, how, once, sleep_s

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        time.sleep(self.sleep_s)
        loss = super().loss(model, batch)
        if self.sample not in batch[0].tolist() or (self.once and Path(self.once).exists()):
            return loss
        if self.once:
            Path(self.once).touch()
        if self.how == "raise":
            undefined_name  # noqa: B018, F821
        if self.how == "hang":
            time.sleep(100_000)
        if self.how == "grip":
            ctypes.PyDLL(None).sleep(3)  # called with the interpreter's lock held
        if self.how == "vanish":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exit":
            os._exit(3)
        if self.how == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        return Loss(loss.sum * float("nan" if self.how == "nan" else "inf"), loss.weight)


class Handles(Probe):
    """Installs a handler for SIGTERM that would end the process."""

    def model(self) -> nn.Module:
        signal.signal(signal.SIGTERM, self.on_signal)
        return super().model()

    def on_signal(self, number: int, frame: Any) -> None:
        print("the task's own handler", flush=True)
        raise SystemExit(1)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        time.sleep(0.05)
        return super().loss(model, batch)


class Forks(Probe):
    """Forks a child and ends it with SIGTERM, as data loaders do."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        child = os.fork()
        if child == 0:
            time.sleep(60.0)
            os._exit(0)
        time.sleep(0.05)  # it has begun
        os.kill(child, signal.SIGTERM)
        print("the child ended with signal", os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
        return super().loss(model, batch)


class Broken(Task):
    """Fails before it is warm."""

    def __init__(self, how: str) -> None:
        self.how = how

    def model(self) -> nn.Module:
        if self.how == "import":
            import no_such_module_zz  # noqa: F401
        if self.how == "exit":
            os._exit(1)
        if self.how == "raise":
            raise RuntimeError("this model cannot be built")
        return nn.Linear(1, 1)

    def dataset(self, split: str) -> Dataset[Any] | None:
        return Rows([]) if split == "train" else None

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        return Loss(model(batch[1].reshape(-1, 1)).sum(), 1)


class Counting(Probe):
    """A buffer that is not a float and depends on the data."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        return model

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        model.seen += int(batch[0].sum())
        return super().loss(model, batch)
