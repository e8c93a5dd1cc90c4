"""A replica of torchft 0.2: one worker, which survives the death of the others.

python ft.py NUMBER

Tuned for the fastest recovery that was found (timeouts; `LIGHTHOUSE` for its coordinator). torchft 0.2's DDP
hook ends the survivor with `assert fut._fut` when gloo reports a lost peer inside an all-reduce; `Repaired`
is the same hook without that, so that torchft does what it promises.
"""

import os
import sys
from typing import Any

from rig.events import Events, Setting

# The join timeout must exceed the spread of the replicas' step times, or no full quorum ever forms again.
LIGHTHOUSE = {"min_replicas": 1, "join_timeout_ms": 3000, "quorum_tick_ms": 10, "heartbeat_timeout_ms": 400}


def train(log: Events, number: int) -> None:
    """The loop; also what `on_ray.py` runs inside Ray Train. setting: workers, ckpt_every."""
    from datetime import timedelta

    import torch
    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    from rig import workload as w

    class Repaired(DistributedDataParallel):
        @staticmethod
        def _comm_hook(manager, bucket):  # type: ignore[no-untyped-def]  # DDP reads the annotations
            work = manager.allreduce(bucket.buffer())
            work.wait()
            future = work.get_future()
            future = getattr(future, "_fut", future)  # a failed step's work has a plain future
            if future is None:  # wait() met the error, reported it, and left no future
                future = torch.futures.Future()
                future.set_result(bucket.buffer())
            return future

    setting = Setting()
    w.one_thread()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = w.model()
    adam = w.adam(model)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "adam": adam.state_dict()},
        init_sync=False,
        hostname="127.0.0.1",
        rank=0,
        world_size=1,
        replica_id=f"r{number}",
        store_addr="127.0.0.1",
        store_port=store.port,
        timeout=timedelta(seconds=10),
        quorum_timeout=timedelta(seconds=20),
        connect_timeout=timedelta(seconds=5),
        heartbeat_interval=timedelta(milliseconds=50),
    )
    ddp, optimizer = Repaired(manager, model), Optimizer(manager, adam)
    path = setting.folder / "checkpoint.pt"
    manager.load_state_dict({"step": w.load(path, model, adam), "batches_committed": 0})
    log.ready(step=manager.current_step())
    while True:
        step = manager.current_step()
        optimizer.zero_grad()  # starts the quorum
        # The global batch is constant: the share depends on the quorum, so wait for it.
        rank, world = manager.participating_rank(), manager.num_participants()
        data = w.share(step, rank or 0, max(world, 1))
        ddp(data).backward()
        optimizer.step()
        done = manager.current_step()
        if done == step:
            log("abort", step=step)
            continue
        # A replica that is being healed takes part without gradients of its own.
        kind = "commit" if manager.is_participating() or world == 1 else "heal"
        log(kind, step=done, world=manager.num_participants(), rows=len(data))
        if setting.ckpt_every and done % setting.ckpt_every == 0 and manager.participating_rank() == 0:
            w.save(path, model, adam, done)


if __name__ == "__main__":
    os.environ.setdefault("RUST_LOG", "warn")
    train(Events(sys.argv[1]), int(sys.argv[1]))
