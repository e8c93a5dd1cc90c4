"""The yardstick of start.py: a bare Ray Job that starts one bare Ray Train run of the same model and data.

    python bare_run.py WORKERS FOLDER      writes the time of the first finished step to FOLDER/first_step

Nothing of elastrain's engine is in it: TorchTrainer, DistributedDataParallel, torch's own optimizer.
"""

import sys
import time
from pathlib import Path

import torch
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer, prepare_model
from torch.utils.data import DataLoader, DistributedSampler

from elastrain.trainers.tasks.digits import Digits


def train(config: dict[str, str]) -> None:
    task = Digits(channels=32, hidden=64, dropout=0.2, batch_norm=True)
    data = task.dataset("train")
    assert data is not None
    model = prepare_model(task.model())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    share = 256 // get_context().get_world_size()
    sampler: DistributedSampler[object] = DistributedSampler(data)
    for batch in DataLoader(data, batch_size=share, sampler=sampler):
        loss = task.loss(model, batch)
        torch.autograd.backward(loss.sum / loss.weight)
        optimizer.step()
        if get_context().get_world_rank() == 0:
            Path(config["folder"], "first_step").write_text(repr(time.time()))
        return


if __name__ == "__main__":
    workers, folder = int(sys.argv[1]), sys.argv[2]
    TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name=f"bare-{time.time_ns()}", storage_path=str(Path(folder, "train"))),
    ).fit()
