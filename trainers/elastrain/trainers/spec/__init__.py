"""The job spec: what a user may write, checked at the door. No torch, no numpy."""

from elastrain.trainers.spec.advice import warnings
from elastrain.trainers.spec.errors import SpecError
from elastrain.trainers.spec.job import JobSpec, amended, parse_spec, spec_digest
from elastrain.trainers.spec.optimizers import (
    AdagradSpec,
    AdamSpec,
    AdamWSpec,
    OptimizerSpec,
    RMSpropSpec,
    SGDSpec,
)
from elastrain.trainers.spec.resources import worker_takes
from elastrain.trainers.spec.source import OUT_OF_ORDER, Source, model_only, moved, place
from elastrain.trainers.spec.strategies import SERVER_CPU, asynchronous

__all__ = [
    "OUT_OF_ORDER",
    "SERVER_CPU",
    "AdagradSpec",
    "AdamSpec",
    "AdamWSpec",
    "JobSpec",
    "OptimizerSpec",
    "RMSpropSpec",
    "SGDSpec",
    "Source",
    "SpecError",
    "amended",
    "asynchronous",
    "model_only",
    "moved",
    "parse_spec",
    "place",
    "spec_digest",
    "warnings",
    "worker_takes",
]
