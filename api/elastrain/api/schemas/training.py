"""What a job leaves behind while it trains: events, metrics, log lines, workers, generations, checkpoints."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from elastrain.api.schemas.base import AT, Number, example


class Event(BaseModel):
    model_config = example(
        {
            "id": 7,
            "at": AT,
            "type": "worker.lost",
            "message": "w1 was lost: signal 9",
            "data": {"worker": "w1"},
        }
    )
    id: int = Field(description="The event's position in the job's feed.")
    at: str
    type: str
    message: str
    data: dict[str, Any]


class EventPage(BaseModel):
    items: list[Event]
    next_cursor: str | None


class LogLine(BaseModel):
    model_config = example(
        {"offset": 0, "at": AT, "worker": "w0", "attempt": 1, "text": "reading the data set"}
    )
    offset: int = Field(description="Bytes before this line in the worker's log of this attempt.")
    at: str | None
    worker: str
    attempt: int
    text: str


class LogPage(BaseModel):
    items: list[LogLine]
    next_offset: int | None = Field(description="Where one worker's log goes on, in bytes.")
    next_cursor: str | None = Field(description="Where all workers' logs go on.")
    size: int | None = Field(description="Bytes of the worker's whole log so far.")
    truncated: bool = Field(description="Whether something was left out; `text/plain` has every byte.")


class Worker(BaseModel):
    model_config = example(
        {
            "id": "w3",
            "group": "g3",
            "node": "127.0.0.1",
            "pid": 4242,
            "rank": 1,
            "state": "active",
            "joined_step": 12,
            "share": 0.5,
            "attempt": 1,
        }
    )
    id: str
    group: str | None
    node: str | None
    pid: int | None
    rank: int | None
    state: Literal["starting", "ready", "active", "leaving", "lost", "ended"]
    joined_step: int | None
    share: float | None
    attempt: int


class WorkerPage(BaseModel):
    items: list[Worker]
    next_cursor: str | None = None


class Generation(BaseModel):
    model_config = example(
        {
            "generation": 2,
            "formed_at": AT,
            "step": 12,
            "workers": ["w0", "w3"],
            "cause": "w1 was lost: signal 9",
            "pause_ms": 84.0,
            "attempt": 1,
        }
    )
    generation: int
    formed_at: str
    step: int
    workers: list[str]
    cause: str | None
    pause_ms: Number | None
    attempt: int


class GenerationPage(BaseModel):
    items: list[Generation]
    next_cursor: str | None = None


class CheckpointFile(BaseModel):
    name: str
    bytes: int
    sha256: str | None


class Checkpoint(BaseModel):
    model_config = example(
        {
            "step": 20,
            "epoch": 3,
            "created_at": AT,
            "bytes": 126000,
            "state": "saved",
            "params_digest": "9f86d081884c7d65",
            "state_digest": "2c26b46b68ffc68f",
            "metrics": {"loss": 0.2},
            "pinned": False,
            "attempt": 1,
            "files": [{"name": "model.safetensors", "bytes": 42000, "sha256": "60303ae22b998861"}],
        }
    )
    step: int
    epoch: float | None
    created_at: str | None
    bytes: int
    state: Literal["saved", "bad"]
    params_digest: str | None
    state_digest: str | None
    metrics: dict[str, Any] | None
    pinned: bool
    attempt: int
    files: list[CheckpointFile]


class CheckpointPage(BaseModel):
    items: list[Checkpoint]
    next_cursor: str | None = None
