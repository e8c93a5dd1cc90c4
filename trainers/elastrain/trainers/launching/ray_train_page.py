"""A running attempt in Ray's list of Train runs: `/api/train/v2/runs/v1` of Ray's dashboard.

    facts -> Shown, in Ray's words -> train_page.py, a thread of the driver
      -> the scribe, an actor of ours, one per cluster -> Ray Train's own state actor -> Ray's dashboard

Ray has no public call for this: what is on that list has told the state actor, as the controllers of Ray
Train do, and ours are runs of groups, which come and go while the attempt is one. So the names and the schema
of Ray's private `ray.train.v2._internal.state` are used, here and nowhere else. Should a later Ray have
others, one line in the driver's log says so, and the attempt is not on the list.

A handle of that actor brings the whole of Ray Train into the process that asks for it, and a driver is to be
small: hence the scribe. The controller that Ray is told of is the supervisor of the driver's Ray Job, an
actor that ends with the driver: so Ray itself calls a run aborted whose driver died.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from elastrain.trainers.launching.train_page import Away, TrainPage
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.spec import JobSpec, worker_takes

if TYPE_CHECKING:
    from elastrain.trainers.coordination.attempt import Outcome

SWITCH = "RAY_TRAIN_ENABLE_STATE_TRACKING"  # Ray's own; "0" on the nodes keeps us off the list as well
ANSWER_S = 60.0  # the first one waits until the scribe and Ray's actor have started

SCRIBE = "elastrain-train-page-1"  # the number goes up when `show` takes something else
NAMESPACE = "elastrain"
HEAD = {"node:__internal_head__": 0.001}  # where Ray's state actor is, too
SUPERVISOR = "_ray_internal_job_actor_{}", "SUPERVISOR_ACTOR_RAY_NAMESPACE"  # of a Ray Job

RUNS = {"starting": "INITIALIZING", "running": "RUNNING"}
ATTEMPTS = {"starting": "PENDING", "running": "RUNNING"}
ENDS = {"succeeded": "FINISHED", "failed": "ERRORED"}  # whatever else may go on in another attempt
ABORTED = "ABORTED"
WAITS = "waiting for workers"
LONGEST = 10_000  # characters of a message


def open_page(
    spec: JobSpec, job: str, number: int, submission: str, env: Mapping[str, str] = os.environ
) -> TrainPage | None:
    """The page of an attempt, whose driver is that Ray Job; None where SWITCH turns it off."""
    if env.get(SWITCH, "1").lower() in ("0", "false"):
        return None
    return TrainPage(Shown(spec, job, number), ByScribe(submission))


class Shown:
    """What is known of one attempt, in the words of Ray Train's schema: a run, with one attempt."""

    def __init__(self, spec: JobSpec, job: str, number: int) -> None:
        self.name = f"{spec.name}-{job}-{number}"  # as its groups and agents are named
        self._id, self._number = f"{job}-{number}", number
        self._settings = _settings(spec, job, number, self.name)
        self._version = version("elastrain")
        self._began_ns = time.time_ns()
        self._ended_ns: int | None = None
        self._status, self._detail = "starting", ""
        self._outcome: Outcome | None = None
        self._members: list[str] = []  # by rank
        self._workers: dict[str, Json] = {}  # worker -> the newest fact
        self._actors: dict[str, Json] = {}  # worker -> what its agent said of the actor that holds it

    @property
    def begun(self) -> bool:
        """Whether it trains, or has ended."""
        return self._outcome is not None or self._status != "starting"

    def take(self, fact: Json) -> None:
        match fact["kind"]:
            case "progress":
                self._status = fact["status"]
                self._detail = WAITS if fact["reason"] == "waiting_for_workers" else ""
            case "generation":
                self._members = list(fact["workers"])
            case "worker":
                self._workers[fact["id"]] = fact
            case "actor":
                self._actors[fact["worker"]] = fact

    def end(self, outcome: Outcome) -> None:
        self._outcome, self._ended_ns = outcome, time.time_ns()

    def run(self) -> Json:
        """The fields of a TrainRun, but those that only the cluster knows."""
        return {
            "id": self._id,
            "name": self.name,
            **self._state(RUNS),
            "framework_versions": {"elastrain": self._version},
            "run_settings": self._settings,
        }

    def attempt(self) -> Json:
        """The fields of its TrainRunAttempt."""
        workers = self._of_members()
        return {
            "run_id": self._id,
            "attempt_id": str(self._number),
            **self._state(ATTEMPTS),
            "resources": [worker["resources"] for worker in workers],
            "workers": workers,
        }

    def _state(self, while_it_runs: Mapping[str, str]) -> Json:
        status, detail = while_it_runs.get(self._status, "RUNNING"), self._detail
        if (end := self._outcome) is not None:
            status = ENDS.get(end.outcome, ABORTED)
            detail = end.message or ("" if end.outcome in ENDS else end.outcome)
        return {
            "status": status,
            "status_detail": detail[:LONGEST] or None,
            "start_time_ns": self._began_ns,
            "end_time_ns": self._ended_ns,
        }

    def _of_members(self) -> list[Json]:
        """Those of the newest generation, whose processes may have ended by now."""
        found: list[Json] = []
        nodes: list[str] = []
        for rank, worker in enumerate(self._members):
            fact, actor = self._workers.get(worker), self._actors.get(worker, {})
            if fact is None:
                continue
            node = fact["node"] or ""
            nodes += [node] if node not in nodes else []
            found.append(
                {
                    "world_rank": rank,
                    "local_rank": sum(other["node_id"] == node for other in found),
                    "node_rank": nodes.index(node),
                    "actor_id": actor.get("actor", ""),
                    "node_id": node,
                    "node_ip": actor.get("address", ""),
                    "pid": fact["pid"] or 0,  # of the worker, a child of its actor's process
                    "gpu_ids": [],
                    "status": "DEAD" if self._outcome is not None else "ALIVE",
                    "resources": {"resources": actor.get("resources", {})},
                }
            )
        return found


def _settings(spec: JobSpec, job: str, number: int, name: str) -> Json:
    """What Ray shows as the run's configuration. Nothing of `env` and `task_args`: anybody may read it."""
    about = {"job": job, "attempt": number, "project": spec.project, "task": spec.task}
    no_data = {"resource_limits": {}, "exclude_resources": {}, "preserve_order": False}
    execution = {**no_data, "actor_locality_enabled": False, "verbose_progress": False}
    return {
        "train_loop_config": {
            **about,
            "strategy": spec.strategy.name,
            "optimizer": spec.optimizer.name,
            "batch": spec.batch.size,
        },
        "backend_config": {"framework": None, "config": {}},
        "scaling_config": {
            "num_workers": (spec.workers.min, spec.workers.max),
            "use_gpu": False,
            "use_tpu": False,
            "resources_per_worker": worker_takes(spec.resources.model_dump()),
            "placement_strategy": "SPREAD",
        },
        "datasets": [],
        "data_config": {
            "datasets_to_split": [],
            "data_execution_options": {"default": execution},
            "enable_shard_locality": False,
        },
        "run_config": {
            "name": name,
            "failure_config": {"max_failures": spec.retries, "controller_failure_limit": 0},
            "worker_runtime_env": {},
            "checkpoint_config": {"num_to_keep": spec.checkpoint.keep, "checkpoint_score_order": "max"},
            "storage_path": f"jobs/{job}",
        },
    }


class Scribe:
    """The actor: makes Ray's objects out of plain data, in the one process of ours that has Ray Train."""

    def __init__(self) -> None:
        from ray.train.v2._internal.state import schema
        from ray.train.v2._internal.state.state_actor import get_or_create_state_actor

        self._schema: Any = schema
        self._state: Any = get_or_create_state_actor()
        self._supervisors: dict[str, str] = {}  # submission -> actor id

    def show(self, submission: str, run: Json, attempt: Json) -> None:
        """submission: of the Ray Job in which the driver runs. Saying it again is harmless."""
        import ray

        run["controller_actor_id"] = self._supervisor(submission)
        run["framework_versions"]["ray"] = ray.__version__
        whole = self._schema.TrainRun(**run), self._schema.TrainRunAttempt(**attempt)
        said = [
            self._state.create_or_update_train_run.remote(whole[0]),
            self._state.create_or_update_train_run_attempt.remote(whole[1]),
        ]
        ray.get(said, timeout=ANSWER_S)
        if whole[0].status.is_terminal():
            self._supervisors.pop(submission, None)

    def _supervisor(self, submission: str) -> str:
        if submission not in self._supervisors:
            import ray

            actor: Any = ray.get_actor(SUPERVISOR[0].format(submission), SUPERVISOR[1])
            self._supervisors[submission] = actor._actor_id.hex()
        return self._supervisors[submission]


class ByScribe:
    """Tell, on the Ray cluster that this process is connected to."""

    def __init__(self, submission: str) -> None:
        self._submission = submission
        self._scribe: Any = None

    def __call__(self, run: Json, attempt: Json) -> None:
        from ray.exceptions import RayActorError, RayError, RayTaskError

        import ray

        here = {"job_id": ray.get_runtime_context().get_job_id()}
        try:
            if self._scribe is None:
                self._scribe = self._found_or_made()
            ray.get(self._scribe.show.remote(self._submission, {**run, **here}, attempt), timeout=ANSWER_S)
        except RayTaskError:  # what was called is there, and did not do it
            raise
        except RayError as error:
            if isinstance(error, RayActorError) and error.actor_init_failed:
                raise
            self._scribe = None
            raise Away(str(error)) from error

    def _found_or_made(self) -> Any:
        """It outlives the job that makes it, and so has nothing of it in its environment."""
        import ray

        return (
            ray.remote(Scribe)
            .options(
                name=SCRIBE,
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                resources=HEAD,
                max_restarts=-1,
                max_task_retries=3,
                runtime_env={"env_vars": {name: "" for name in os.environ if name.startswith("ELASTRAIN_")}},
            )
            .remote()
        )
