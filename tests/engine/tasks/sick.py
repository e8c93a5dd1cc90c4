"""Workers that are slow, and state that rots: what a file says about a process."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elastrain.trainers.task import Loss
from elastrain.trainers.training.replica import Replica
from engine.tasks.toy import Toy


class Slowed(Toy):
    """Every microbatch takes `sleep_s`, and `times` as long on the process whose number is in `file`."""

    def __init__(self, file: str, sleep_s: float = 0.02, times: float = 3.5) -> None:
        super().__init__()
        self.file, self.least_s, self.times = Path(file), sleep_s, times

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        slow = self.file.exists() and self.file.read_text() == str(os.getpid())
        time.sleep(self.least_s * (self.times if slow else 1.0))
        return super().loss(model, batch)


class Rotting(Toy):
    """A bit flips, once, on the process that `file` names: "<pid> <slot> <piece> <element>", the slot "param"
    or one of the optimizer's, the piece an index into the chunks that the process keeps."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = Path(file)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        try:
            said = self.file.read_text().split()
        except FileNotFoundError:  # not yet, or another process has just taken it away
            said = ["0"]
        if said[0] == str(os.getpid()):
            self.file.unlink()
            flip(said[1], int(said[2]), int(said[3]))
        return super().loss(model, batch)


def flip(slot: str, piece: int, element: int) -> None:
    """What a bad memory cell does: nobody is told."""
    (replica,) = (o for o in gc.get_objects() if type(o) is Replica)
    chunk = replica.states.ranges()[piece]
    window = replica.model.space.elements(chunk)
    values = replica.model.params[window] if slot == "param" else replica.states.pieces[chunk][slot]
    values.view(torch.int32)[element] ^= 1 << 20
    print(f"a bit of {slot} flips in blocks {chunk}", flush=True)


class Unseeded(Toy):
    """Each process begins with a model of its own."""

    def model(self) -> nn.Module:
        model = super().model()
        with torch.no_grad():
            next(model.parameters()).add_(os.getpid())
        return model
