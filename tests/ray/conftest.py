"""A Ray head of the tests' own, as `elastrain up` starts it: own ports, own token, own folder."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrain.service.up_home import Home
from elastrain.service.up_ports import LOOPBACK
from elastrain.service.up_ray import RayHead
from launched import Coordinator


@pytest.fixture(scope="session")
def ray_head() -> Iterator[RayHead]:
    """Started once for all tests that ask for it, with two CPUs, and ended by its process ids."""
    assert "ray" not in sys.modules, "a test module imports ray: it would not see the settings made here"
    with tempfile.TemporaryDirectory(prefix="elastrain-test-") as folder:
        home = Home(Path(folder))
        head = RayHead(home, cpus=2)
        head.start()
        try:
            deadline = time.monotonic() + 60
            while not head.ready():
                assert head.alive and time.monotonic() < deadline, head.why()
                time.sleep(0.1)
            os.environ.update(
                {
                    "RAY_AUTH_MODE": "token",
                    "RAY_AUTH_TOKEN_PATH": str(home.ray_token_file),
                    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as the head: read when ray is imported
                }
            )
            yield head
        finally:
            assert head.stop() == []


@pytest.fixture(scope="session")
def connected(ray_head: RayHead) -> Iterator[None]:
    """This process is connected to the head, as a driver is."""
    import ray

    ray.init(f"{LOOPBACK}:{ray_head.ports.gcs}", log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def coordinator() -> Iterator[Coordinator]:
    coordinator = Coordinator()
    thread = threading.Thread(target=coordinator.server.serve_forever)
    thread.start()
    yield coordinator
    coordinator.server.shutdown()
    thread.join()
