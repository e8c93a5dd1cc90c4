"""The Python client.

from elastrain.client import Client

job = Client().submit("job.yaml", working_dir=".")
for update in job.follow(): ...
job.scale(2, 6); job.wait(); state = job.checkpoint().load()
"""

from elastrain.client.client import Client
from elastrain.client.errors import (
    Conflict,
    ElastrainError,
    FixRequest,
    JobFailed,
    NotAllowed,
    NotFound,
    ServiceBroken,
    TimedOut,
    Unreachable,
)
from elastrain.client.jobs import Checkpoint, Job
from elastrain.client.stream import Update

__all__ = [
    "Checkpoint",
    "Client",
    "Conflict",
    "ElastrainError",
    "FixRequest",
    "Job",
    "JobFailed",
    "NotAllowed",
    "NotFound",
    "ServiceBroken",
    "TimedOut",
    "Unreachable",
    "Update",
]
