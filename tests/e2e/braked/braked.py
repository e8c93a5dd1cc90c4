"""The digits, slowly for as long as a file is there: time for a test to act, and the same bits."""

import os
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from elastrain.trainers.task import Loss
from elastrain.trainers.tasks.digits import Digits


class Braked(Digits):
    def __init__(self, brake: str, sleep_s: float, **digits: Any) -> None:
        super().__init__(**digits)
        self.brake, self.sleep_s = Path(brake), sleep_s
        print(f"the canary has {len(os.environ.get('CANARY', ''))} letters", flush=True)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        if self.brake.exists():
            time.sleep(self.sleep_s)
        return super().loss(model, batch)
