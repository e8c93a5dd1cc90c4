"""What a peer's worker does before it trains, and then nothing: what starting one costs, by itself."""

import time

from rig.events import Events

if __name__ == "__main__":
    log = Events("decoy")
    import torch.distributed  # noqa: F401  # every worker of every peer has it

    from rig import workload as w
    from rig.run import anonymous_mb

    log("imported", anonymous_mb=anonymous_mb("self"))
    w.one_thread()
    w.adam(w.model())
    log("decoy", cpu_s=round(time.process_time(), 3))
