"""Forward and backward alone, on this rank's share of each step: what no system can beat.

python limit.py RANK WORLD
"""

import sys

from rig import workload as w
from rig.events import Events

if __name__ == "__main__":
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    log = Events(str(rank))
    w.one_thread()
    model = w.model()
    log.ready()
    step = 0
    while True:
        model.zero_grad()
        model(w.share(step, rank, world)).backward()
        step += 1
        log("commit", step=step, world=world)
