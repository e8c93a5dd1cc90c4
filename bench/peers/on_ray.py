"""The driver of one Ray Train run, on a Ray of its own on the loopback: TorchTrainer.fit() with DDP.

python on_ray.py FOLDER      FOLDER is for Ray's own files

setting: workers, ckpt_every, elastic (one node per worker; a file `grow` in the run's folder adds a node).
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rig.events import Events, Setting


def train(config: dict[str, Any]) -> None:
    """What each worker of the run does."""
    log = Events()
    import ray.train
    from ray.train import Checkpoint, CheckpointUploadMode
    from ray.train.torch import prepare_model

    from rig import workload as w

    setting, context = Setting(), ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    log.who = str(rank)
    w.one_thread()
    model = w.model()
    adam = w.adam(model)
    step, newest = 0, ray.train.get_checkpoint()
    if newest:
        with newest.as_directory() as folder:
            step = w.load(Path(folder, "checkpoint.pt"), model, adam)
    ddp = prepare_model(model)
    log.ready(step=step)
    while True:
        data = w.share(step, rank, world)
        loss = ddp(data)
        adam.zero_grad()
        loss.backward()
        adam.step()
        step += 1
        log("commit", step=step, world=world, rows=len(data))
        if not setting.ckpt_every or step % setting.ckpt_every:
            continue
        if rank == 0:
            folder = tempfile.mkdtemp(dir=setting.folder)
            w.save(Path(folder, "checkpoint.pt"), model, adam, step)
            ray.train.report(
                {"step": step},
                checkpoint=Checkpoint.from_directory(folder),
                checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
                delete_local_checkpoint_after_upload=True,
            )
        else:
            ray.train.report({"step": step})


def main() -> None:
    setting = Setting()
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    import ray

    temporary, cluster = sys.argv[1], None
    if setting.elastic:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": temporary}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(setting.workers - 1):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, logging_level="WARNING")
    else:
        ray.init(
            address="local",
            num_cpus=setting.workers,
            include_dashboard=False,
            _temp_dir=temporary,
            logging_level="WARNING",
        )
    scaling: dict[str, Any] = {"num_workers": setting.workers}
    if setting.elastic:
        scaling = {"num_workers": (1, 2), "elastic_resize_monitor_interval_s": 1.0}
    trainer = TorchTrainer(
        train,
        train_loop_config={},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(
            name="bench",
            storage_path=str(setting.folder / "ray"),
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    if cluster is None:
        trainer.fit()
        return
    threading.Thread(target=trainer.fit, daemon=True).start()
    while True:  # nodes can be added in the main thread only
        grow = setting.folder / "grow"
        if grow.exists():
            grow.unlink()
            cluster.add_node(num_cpus=1)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
