"""What goes on beside training gives way to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import contextlib, os, sys
from pathlib import Path
from elastrain.trainers.storage import open_storage
from elastrain.trainers.training import background

background.wake_storage()
storage = open_storage(sys.argv[1])
background.start(storage.put, "checkpoint", b"x" * 10_000_000, name="upload").join()
for task in Path("/proc/self/task").iterdir():
    if int(task.name) != os.getpid():
        with contextlib.suppress(ProcessLookupError):  # Python's own thread is about to be gone
            print(os.getpriority(os.PRIO_PROCESS, int(task.name)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_the_threads_that_write_a_checkpoint_leave_the_processor_to_training(tmp_path: Path) -> None:
    """Those of the object store's library too, which are there from the store's first use."""
    command = [sys.executable, "-c", PROGRAM, tmp_path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    priorities = done.stdout.split()
    assert len(priorities) >= 2 and set(priorities) == {"10"}
