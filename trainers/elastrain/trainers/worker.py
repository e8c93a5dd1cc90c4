"""A worker process, from its first line to its last."""

from __future__ import annotations

import importlib
import os
import sys

import torch

from elastrain.trainers.checkpoints.snapshots import Snapshots
from elastrain.trainers.exchange.collectives import Rendezvous
from elastrain.trainers.launching.launcher import WorkerStart
from elastrain.trainers.loop import Trainer
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.chunks import Domain, Ownership
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.numerics.memory import keep_memory, return_memory, touch
from elastrain.trainers.spec import JobSpec, parse_spec
from elastrain.trainers.spec.source import NoSource
from elastrain.trainers.spec.strategies import ParameterServer, asynchronous, servers_of
from elastrain.trainers.split.follower import session_of
from elastrain.trainers.split.lockstep import Shards, fork
from elastrain.trainers.split.shards import Alone
from elastrain.trainers.storage import open_storage
from elastrain.trainers.strategies.ledger import Replay
from elastrain.trainers.strategies.lines import Hub
from elastrain.trainers.strategies.orders import own_copy
from elastrain.trainers.strategies.pushing import PushingWorker
from elastrain.trainers.strategies.served import ServedReplica
from elastrain.trainers.strategies.serving import ServingTrainer
from elastrain.trainers.task import Task, load_task
from elastrain.trainers.training import code, sigterm
from elastrain.trainers.training.background import wake_storage
from elastrain.trainers.training.faults import UserFault, blamed_on_user, refuse
from elastrain.trainers.training.first_put import try_in_background
from elastrain.trainers.training.replica import Replica, make_module
from elastrain.trainers.training.samples import SampleReader
from elastrain.trainers.training.session import Dismissed, Session

SPLITS = {
    "fully_shard": "elastrain.trainers.split.model",
    "tensor": "elastrain.trainers.split.tensor_parallel",
    "pipeline": "elastrain.trainers.split.pipeline",
}
FLUSH_S = 20.0  # for the upload of what a worker owes when it is dismissed


def main(start: WorkerStart, node: str | None = None) -> int:
    """Train until the coordinator needs this worker no longer. Returns the exit code."""
    if start.processes > 1:
        # takes seconds to import: once for all of them
        importlib.import_module(SPLITS[start.split])
    shards = fork(start.processes)
    session = session_of(start, shards)
    try:
        rendezvous = Rendezvous(session.host)
        hub = Hub(session.host, start.key) if start.server else None
        address = rendezvous.address | ({"push": hub.port} if hub is not None else {})
        addresses = shards.gather(address)
        if isinstance(shards, Shards):
            address = {**address, "shards": addresses[1:]}
        welcome = shards.agree(lambda: session.register(node or session.host, address))
        wake_storage()
        session.storage = open_storage(welcome["storage_url"], welcome["storage_options"])
        if shards.lead:
            try_in_background(session.storage, start)
        try:
            trainer = prepare(session, welcome, hub, addresses[0])
        except UserFault as error:
            print(error.fault.traceback, file=sys.stderr, flush=True)
            session.start_failed(error.fault)
            session.wait_dismissed()
            return 1
        shards.gather(None)  # all of them are
        session.send("warm", **trainer.facts())
        try:
            trainer.run()
        finally:
            shards.dismiss("its lead ends")
            trainer.snapshots.flush(FLUSH_S)
            shards.wait(FLUSH_S)
    except Dismissed as why:
        print(f"{start.worker} ends: {why}", file=sys.stderr, flush=True)
    finally:
        session.close()
    return 0


def prepare(session: Session, welcome: Json, hub: Hub | None, lead_at: Json) -> Trainer:
    """Everything that takes time, before anyone waits for us: code, model, data. Raises UserFault.

    lead_at: where the processes of this worker meet, if it has several.
    """
    os.environ.update(welcome["env"])
    spec = parse_spec(welcome["spec"])
    set_numerics(spec)
    return_memory()  # while a model is built: what that leaves would lie in pieces among what a step needs
    with blamed_on_user("start"):
        if welcome["package"]:
            code.install(session.storage, welcome["package"])
        task = load_task(spec.task, spec.task_args)
        model = flat_model(spec, task, session.shards, lead_at)
        # stages get their samples in pieces, which are collated one by one
        reader = SampleReader(task, spec.seed, session.shards, list if model.staged else None)
        parts = spec, task, model, reader.size("train"), reader.size("val")
        if hub is not None and asynchronous(spec.strategy):
            replica: Replica = ServedReplica(*parts, hub)
        else:
            replica = Replica(*parts)
        if session.shards.lead:
            sigterm.listen(session.notice)
            model.warn = lambda text: session.send("warning", message=text)
    if session.shards.count == 1:
        keep_memory()
        keepers = session.start.members if hub is not None or not servers_of(spec.strategy) else 0
        again, once = first_step(replica, keepers)
        with blamed_on_user("start"):  # what does not fit is the user's to change
            touch([*again, *first_snapshot(replica, keepers)], once)
    snapshots = Snapshots(session, session.storage, session.start.job, session.start.attempt)
    if isinstance(replica, ServedReplica):
        replay = to_repeat(session, spec, replica.plan.total_steps)
        return ServingTrainer(replica, reader, session, snapshots, replay)
    kind = PushingWorker if asynchronous(spec.strategy) else Trainer
    return kind(replica, reader, session, snapshots)


def flat_model(spec: JobSpec, task: Task, shards: Alone, lead_at: Json) -> FlatModel:
    """The model as this process has it."""
    module = make_module(task, spec.seed)
    if shards.count == 1:
        return FlatModel(module)
    from elastrain.trainers.split import model as split

    if spec.workers.split == "pipeline":
        from elastrain.trainers.split import pipeline

        shards.shares, parts = False, task.pipeline(module)
        return pipeline.PipelineModel(module, shards, split.mesh_of(shards, lead_at), parts)
    if spec.workers.split == "tensor":
        from elastrain.trainers.split import tensor_parallel

        shards.shares, plan = False, task.tensor_plan()
        return tensor_parallel.TensorModel(module, shards, split.mesh_of(shards, lead_at), plan)
    return split.SplitModel(module, shards, split.mesh_of(shards, lead_at))


def to_repeat(session: Session, spec: JobSpec, total: int) -> Replay | None:
    """The order that the driver has taken over for this job of so many steps. Raises UserFault."""
    repetition = own_copy(session.storage, session.start.job)
    assert isinstance(spec.strategy, ParameterServer)
    if repetition is None:
        assert spec.strategy.replay is None, "it begins with what the driver has found"
        return None
    try:
        repetition.must_fit(total, spec.strategy.staleness)
    except NoSource as error:
        refuse(str(error))
    return Replay(repetition.order)


def first_step(replica: Replica, keepers: int) -> tuple[list[int], int]:
    """Vectors, in elements, that one of so many who keep the state has in each step, beside its parameters: a
    gradient, and of two the sums. And what else it has at once: its optimizer state, and activations, which
    are taken to be as large as the model, or to take less; what arrives of others comes when they have gone.
    keepers 0: servers keep it, and this is a worker, which keeps nothing."""
    size, lanes = replica.model.space.size, replica.rule.lanes
    state = size * len(replica.rule.slots) * 2 // max(2, keepers) if keepers else 0
    return [lanes * size] * (2 if keepers == 2 else 1), size + state


def first_snapshot(replica: Replica, keepers: int) -> list[int]:
    """Vectors, in elements, that one of so many who keep the state has while a checkpoint is made: copies of
    its own chunks, and the file. Without checkpoints on the way there is nobody who would wait for them."""
    saves = replica.spec.checkpoint.every_steps is not None or replica.spec.checkpoint.every_s is not None
    if not saves or keepers == 0:
        return []
    space, slots = replica.model.space, len(replica.rule.slots)
    own = Ownership.of(space, [Domain(str(rank), str(rank), str(rank)) for rank in range(keepers)])
    chunks = [max(space.length(own.chunk(b, r)) for r in range(keepers)) for b in space.buckets()]
    return [*chunks * (1 + slots), *([slots * sum(chunks)] if slots else [])]


def set_numerics(spec: JobSpec) -> None:
    """What the bits depend on beside the spec: threads, and the choice of kernels."""
    torch.set_num_threads(spec.threads)
    # As use_deterministic_algorithms(True, warn_only=True), which also imports a compiler for a second.
    torch.set_deterministic_debug_mode("warn")
