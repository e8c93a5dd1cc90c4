"""The service's numbers in Prometheus' text format: of all its processes, if several answer at one place."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.responses import PlainTextResponse

from elastrain.service.control import Control

# prometheus_client keeps its numbers in files of this folder, if it is set before its import
FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def exposition(service: Control) -> PlainTextResponse:
    """The text that Prometheus reads."""
    registry = service.meters.registry
    if folder := os.environ.get(FOLDER):
        registry = CollectorRegistry(auto_describe=False)
        forget_the_dead(Path(folder))
        registry.register(MultiProcessCollector(None, folder))  # type: ignore[no-untyped-call]
    text = generate_latest(registry) + generate_latest(service.known)
    return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)


@contextmanager
def counted_together() -> Iterator[None]:
    """Processes that are started in the block count into one folder: a scrape that reaches any reads all."""
    with tempfile.TemporaryDirectory(prefix="elastrain-metrics-") as folder:
        os.environ[FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER]


def forget_the_dead(folder: Path) -> None:
    """What a process that ended had counted stays; that it leads does not."""
    for pid in {int(file.stem.rsplit("_", 1)[1]) for file in folder.glob("gauge_live*.db")}:
        if not psutil.pid_exists(pid):
            mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]
