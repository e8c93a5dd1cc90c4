"""TensorBoard's event files, written by tensorboardX: no torch, no TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from elastrain.client.errors import FixRequest

SUFFIX = ".elastrain"  # of our files' names: each call writes the job anew


class EventFiles:
    """The one event file of a job in a folder of its own."""

    def __init__(self, folder: Path, job: Mapping[str, Any]) -> None:
        """Raises FixRequest if tensorboardX is not installed."""
        try:
            from tensorboardX.event_file_writer import EventsWriter
        except ImportError as error:
            raise FixRequest(
                f"TensorBoard's files are written by tensorboardX, and {error.name} is not installed: "
                "pip install 'elastrain[tensorboard]'"
            ) from error
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
            old.unlink()  # TensorBoard would show both
        self._writer = EventsWriter(str(folder / "events"), SUFFIX)
        self._text("spec", yaml.safe_dump(job["spec"], sort_keys=False))

    def point(self, step: int, at: float, values: Mapping[str, Any]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        shown = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        self._writer.write_event(Event(wall_time=at, step=step, summary=Summary(value=shown)))

    def back_to(self, step: int) -> None:
        """TensorBoard drops what it has of this step and later ones."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._writer.write_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()

    def _text(self, tag: str, text: str) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import text as summary

        block = "\n".join(f"    {line}" for line in text.splitlines())
        self._writer.write_event(Event(step=0, summary=summary(tag, block)))
