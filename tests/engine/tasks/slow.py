"""Workers that are slow, and state that rots: what a file says about a process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from torch import nn

from elastrain.trainers.task import Loss
from engine.tasks.toy import Toy


class Slowed(Toy):
    """Every microbatch takes `sleep_s`, and `times` as long on the process whose number is in `file`."""

    def __init__(self, file: str, sleep_s: float = 0.01, times: float = 3.5) -> None:
        super().__init__()
        self.file, self.least_s, self.times = Path(file), sleep_s, times

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        slow = self.file.exists() and self.file.read_text() == str(os.getpid())
        time.sleep(self.least_s * (self.times if slow else 1.0))
        return super().loss(model, batch)
