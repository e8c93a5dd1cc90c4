"""The driver: one attempt of a job, run as a Ray Job by `python -m elastrain.trainers.driver`.

claim -> claim.json (fences the attempts before) -> Attempt on Ray, facts going out, desired state coming in
      -> outcome.json (what holds, whatever Ray or the network say) -> the outcome as a fact -> exit

A refused driver exits and has started nothing. This process imports no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

from elastrain.trainers.checkpoints.fence import Fence, Superseded
from elastrain.trainers.coordination.attempt import Attempt, Outcome
from elastrain.trainers.launching.launcher import Launcher
from elastrain.trainers.launching.logs import SHIP_EVERY_S, LogShipper
from elastrain.trainers.launching.processes import make_scratch
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.reporting.claim import Claim, Refused, Ticket, Unanswered, claim
from elastrain.trainers.reporting.facts import event, now
from elastrain.trainers.reporting.mlflow_line import open_line
from elastrain.trainers.reporting.reporter import Reporter
from elastrain.trainers.reporting.spool import Spool
from elastrain.trainers.reporting.whereabouts import look_up
from elastrain.trainers.spec import JobSpec, parse_spec
from elastrain.trainers.storage import AlreadyExists, Storage, StorageError, open_storage

log = logging.getLogger(__name__)

Said = Callable[[Json], None]  # takes a fact, from any thread
LauncherMaker = Callable[[JobSpec, Said], Launcher]

# for a service that is away at the end; then the outcome and the spool in storage tell of it
LAST_FACTS_S = 60.0
STORAGE_PATIENCE_S = 300.0
STORAGE_AGAIN_S = 2.0
# at the start, by the kind of trouble: keys may be rotated, a missing bucket is a mistake
PATIENCE_WITH = {"unavailable": math.inf, "full": math.inf, "denied": 600.0}
ENDS = {"pause": "paused", "preempt": "preempted", "cancel": "cancelled"}  # desired -> how the attempt ends


class Driver:
    """One granted attempt, from the claim's answer to the recorded outcome."""

    def __init__(
        self, ticket: Ticket, granted: Claim, storage: Storage, log_file: Path, shows: Iterable[Said] = ()
    ) -> None:
        """shows: hear each fact of the attempt, too."""
        self._ticket, self._claim, self._storage, self._shows = ticket, granted, storage, tuple(shows)
        self._folder = f"jobs/{ticket.job}/attempts/{ticket.attempt}"
        self._log_file = log_file
        self._desired: Mapping[str, Any] = granted.desired
        # requests up to this one were fulfilled by attempts before; a service that does not say asks for none
        done = granted.desired.get("checkpoint_done", granted.desired["checkpoint_no"])
        self._checkpoint_no = int(done)
        self._attempt: Attempt | None = None
        self._began = False  # no process before this one began this attempt
        self._early_end: tuple[str, str | None] | None = None  # an order that came before the attempt
        self._over = asyncio.Event()
        self._hurried = False  # somebody waits for this process to end

    async def run(self, make_launcher: LauncherMaker, host: str) -> Outcome:
        """Run the attempt to its recorded end. make_launcher is told where log facts go, from any thread.

        host: this node's address, where workers reach the coordinator.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self._reporter = reporter = Reporter(
            self._ticket.url,
            self._claim.token,
            self._ticket.attempt,
            on_desired=self._on_desired,
            on_superseded=lambda: self._end("cancelled", "another attempt has taken over"),
            spool=Spool(self._storage, self._ticket.job, self._ticket.attempt),
            find_service=partial(look_up, self._storage, self._ticket.job),
            certificates=self._ticket.certificates,
        )
        reporter.start(int(self._claim.desired["version"]))

        def said(fact: Json) -> None:
            loop.call_soon_threadsafe(reporter.add, {**fact, "at": now()})

        shipping = asyncio.create_task(self._ship_log(said))
        try:
            outcome = await self._train(make_launcher, said, host)
        except StorageError as error:
            outcome = Outcome("failed", 0, "infrastructure", f"the object storage failed: {error.message}")
        except Exception:
            log.exception("the attempt broke")
            outcome = Outcome("failed", 0, "service", traceback.format_exc(limit=-8))
        said_last = {**asdict(outcome), "receipt": self._receipt()}
        await self._record(said_last)
        reporter.add({"kind": "outcome", "at": now(), **said_last})
        self._over.set()
        await shipping
        if unsent := await reporter.close(5.0 if self._hurried else LAST_FACTS_S):
            log.warning("the service has not heard of %d facts; %d are not kept", unsent, reporter.unkept)
        return outcome

    async def _train(self, make_launcher: LauncherMaker, said: Said, host: str) -> Outcome:
        fenced = await self._begin()
        if fenced is not None:
            return fenced
        spec = parse_spec(self._claim.spec)
        workers = self._desired["workers"]
        attempt = Attempt(
            spec=spec,
            job=self._ticket.job,
            attempt=self._ticket.attempt,
            storage=self._storage,
            launcher=make_launcher(spec, said),
            sink=self._tell,
            host=host,
            welcome={
                "package": self._claim.package,
                "env": {**self._claim.env, **self._claim.secrets},
                "storage_url": self._claim.storage_url,
                "storage_options": self._claim.storage_options,
            },
            workers=(int(workers["min"]), int(workers["target"])),
        )
        self._attempt = attempt
        running = asyncio.ensure_future(attempt.run())
        await asyncio.sleep(0)  # it listens to orders from its first line on
        self._obey()
        if self._early_end is not None:
            self._end(*self._early_end)
        return await running

    async def _begin(self) -> Outcome | None:
        """Fence off the attempts before this one; an outcome if this one must not begin.

        A store that is away costs no attempt: nothing runs yet, so we wait for it, and say so once.
        """
        fence, said = Fence(self._storage, self._ticket.job, self._ticket.attempt), ""
        began = time.monotonic()
        while True:
            try:
                await asyncio.to_thread(fence.begin)
                self._began = True
                return None
            except Superseded:
                self._began = True
                return Outcome("cancelled", 0, None, "a later attempt has begun")
            except AlreadyExists:
                return Outcome("failed", 0, "service", f"attempt {self._ticket.attempt} was begun before")
            except StorageError as error:
                why = f"the object storage cannot be used: {error.message}"
                patience_s = PATIENCE_WITH.get(error.kind, 0.0)
                if time.monotonic() - began > patience_s:
                    return Outcome("failed", 0, "infrastructure", why)
            if end := ENDS.get(self._desired["desired"]):
                return Outcome(cast(Any, end), 0, None, None)
            if self._early_end is not None:
                return Outcome(cast(Any, self._early_end[0]), 0, None, self._early_end[1])
            if why != said:
                self._tell(event("storage.waiting", f"{why}; waiting for it", {}))
                said = why
            await asyncio.sleep(STORAGE_AGAIN_S)

    def _receipt(self) -> Json | None:
        """What is known of the end of this attempt's processes; None if the service has to look itself."""
        if self._attempt is not None:
            return self._attempt.receipt
        return {"nodes": [], "unsearched": [], "seconds": 0.0} if self._began else None

    async def _record(self, outcome: Json) -> None:
        """Write outcome.json, the first of which holds. Patient: without it the attempt counts as lost."""
        deadline = time.monotonic() + STORAGE_PATIENCE_S
        data = json.dumps(outcome).encode()
        while True:
            try:
                await asyncio.to_thread(self._storage.put, f"{self._folder}/outcome.json", data)
            except AlreadyExists:
                log.warning("attempt %d has an outcome already; it holds", self._ticket.attempt)
            except StorageError as error:
                log.warning("the outcome could not be written: %s", error)
                if time.monotonic() < deadline and not self._hurried:
                    await asyncio.sleep(2.0)
                    continue
            return

    def _tell(self, fact: Json) -> None:
        for hear in (self._reporter.add, *self._shows):
            hear(fact)
        if fact["kind"] == "event":
            log.info("%s: %s", fact["type"], fact["message"])

    # -- orders

    def _on_signal(self, number: signal.Signals) -> None:
        log.warning("%s: the attempt ends after a checkpoint", number.name)
        self._hurried = True
        self._end("preempted", f"the driver was told to end ({number.name})")

    def _on_desired(self, desired: Mapping[str, Any]) -> None:
        before, self._desired = self._desired, desired
        if self._attempt is None:
            return
        if desired["workers"] != before["workers"]:
            workers = desired["workers"]
            self._attempt.scale(int(workers["min"]), int(workers["target"]))
        self._obey()

    def _obey(self) -> None:
        number = int(self._desired["checkpoint_no"])
        if number > self._checkpoint_no and self._attempt is not None:
            self._checkpoint_no = number
            self._attempt.checkpoint(number)
        if end := ENDS.get(self._desired["desired"]):
            self._end(end, None)

    def _end(self, how: str, message: str | None) -> None:
        if self._attempt is None:
            self._early_end = (how, message)
        else:
            self._attempt.finish(cast(Any, how), message)

    # -- its own log

    async def _ship_log(self, said: Said) -> None:
        def tell(worker: str, offset: int, size: int) -> None:
            said({"kind": "log", "worker": worker, "offset": offset, "bytes": size})

        shipper = LogShipper(self._storage, self._ticket.job, self._ticket.attempt, tell)
        shipper.follow("driver", self._log_file)
        while not self._over.is_set():
            await asyncio.to_thread(shipper.ship)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), SHIP_EVERY_S)
        await asyncio.to_thread(shipper.ship)


def main() -> int:
    """The driver process; -> its exit code, which Ray shows and nobody relies on."""
    folder = make_scratch("elastrain-driver-")
    try:
        return _work(folder / "driver.log")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _work(log_file: Path) -> int:
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[logging.FileHandler(log_file), logging.StreamHandler()],
    )
    for chatty in ("httpx", "websockets"):  # a line per request, per connection
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        ticket = Ticket.from_env()
        asking = ThreadPoolExecutor(1).submit(claim, ticket)  # meanwhile Ray lets us in, which takes longer
        from elastrain.trainers.launching import on_ray

        host = on_ray.connect()
        granted = asking.result()
    except Refused as why:
        log.warning("%s", why)
        return 0
    except Unanswered as why:
        log.error("%s", why)
        return 1

    storage, ray = open_storage(granted.storage_url, granted.storage_options), on_ray.OnRay(ticket, granted)
    mlflow = open_line(ticket.job, granted)
    driver = Driver(ticket, granted, storage, log_file, shows=(ray.show, mlflow.take))
    outcome = asyncio.run(driver.run(ray.launcher, host))
    log.info("attempt %d: %s", ticket.attempt, outcome.outcome)
    ray.close(outcome)
    mlflow.close(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
