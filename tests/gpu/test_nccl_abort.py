"""Two ranks on two GPUs: one is killed in the middle, the other leaves by an abort and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs, NCCL allows one rank on each"),
]

RANK = """
import sys, time
import torch
from elastrain.trainers.exchange.collectives import Broken, Halted, Rendezvous, build

rank, port = int(sys.argv[1]), int(sys.argv[2])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
if rank == 0:
    rendezvous = Rendezvous("127.0.0.1")
    port = rendezvous.address["port"]
    print("port", port, flush=True)
since = []

def check():
    if since and time.monotonic() - since[0] > 2.0:
        raise Halted("the coordinator has seen the death")

group = build("127.0.0.1", {"host": "127.0.0.1", "port": port}, 1, rank, 2, check, lambda _: None, device)
mine = torch.full((1 << 20,), float(rank + 1), device=device)
sends, sizes = [None, None], [0, 0]
sends[1 - rank], sizes[1 - rank] = mine, 1 << 20
got = group.exchange(sends, sizes, torch.float32)[1 - rank]
group.barrier()
assert got.eq(2.0 - rank).all().item()
print("met", flush=True)
if rank == 1:
    time.sleep(600)
sys.stdin.readline()  # the other one is dead
since.append(time.monotonic())
try:
    group.exchange(sends, sizes, torch.float32)
    group.barrier()
    print("went through", flush=True)
except (Broken, Halted):
    group.park()
    torch.cuda.synchronize(device)
    assert mine.sum().item() == 1 << 20, "the device is of use again"
    print("left", flush=True)
import os
os._exit(0)
"""


def rank(number: int, port: int, script: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script), str(number), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_rank_that_is_killed_is_left_by_an_abort(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    survivor = rank(0, 0, script)
    assert survivor.stdout is not None
    port = int(survivor.stdout.readline().split()[1])
    victim = rank(1, port, script)
    try:
        assert survivor.stdout.readline() == "met\n"
        victim.send_signal(signal.SIGKILL)
        victim.wait(30)
        said, _ = survivor.communicate("dead\n", timeout=60)
        assert said == "left\n"
    finally:
        for process in (survivor, victim):
            process.kill()
            process.wait(30)
