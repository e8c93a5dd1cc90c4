"""How a process of the service shares its one interpreter among those who ask and those who compute.

Only one thread computes at a time, and Python's collector stops all of them while it looks for what nobody
holds any more. Left alone both take turns that are felt: a request needs the interpreter some twenty times.
"""

from __future__ import annotations

import gc
import sys

# how long a thread may compute before another one gets its turn; Python's own 5 ms are felt in every request
# that is answered while the reconciler plans a long queue
SWITCH_S = 0.001
# new objects between two looks at the young ones, looks between two at those that stayed, and so on: a look
# at everything takes tens of milliseconds with a long queue in memory, and finds next to nothing
COLLECT_AFTER = (20_000, 20, 50)


def share() -> None:
    """At the start of a process: threads change often."""
    sys.setswitchinterval(SWITCH_S)


def settle() -> None:
    """When everything is imported and put together: it stays for good, so the collector need not look at it
    again, and at the rest less often than by default."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
