"""What torchrun starts: DistributedDataParallel over gloo, checkpoints by rank 0, resume from the newest.

setting: ckpt_every (0: never); variant "plain" (as everybody writes it), "tuned" (fused Adam, gradients as
views of the buckets, a static graph), or "zero" (ZeroRedundancyOptimizer).
"""

import os

import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam

from rig import workload as w
from rig.events import Events, Setting


def main() -> None:
    setting, log = Setting(), Events(os.environ["RANK"])
    tuned = setting.variant == "tuned"
    w.one_thread()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = w.model()
    path = setting.folder / "checkpoint.pt"
    if setting.variant == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), Adam, lr=w.LR)
        step = 0
    else:
        optimizer = w.adam(model, fused=True) if tuned else w.adam(model)
        step = w.load(path, model, optimizer)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=tuned, static_graph=tuned)
    log.ready(step=step)
    while True:
        data = w.share(step, rank, world)
        loss = ddp(data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        log("commit", step=step, world=world, rows=len(data))
        if rank == 0 and setting.ckpt_every and step % setting.ckpt_every == 0:
            w.save(path, model, optimizer, step)


if __name__ == "__main__":
    main()
