"""What the service wants of an attempt, heard as soon as it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from elastrain.trainers.reporting.retrying import retry_waits

log = logging.getLogger(__name__)

POLL_S = 30  # the service answers then, if nothing has changed


async def poll(
    http: httpx.AsyncClient, version: int, on_desired: Callable[[Mapping[str, Any]], None]
) -> None:
    """Ask for ever, from `version` on; returns once the service says that another attempt took over."""
    waits, told = retry_waits(), ""
    while True:
        try:
            reply = await http.get("/v1/driver/desired", params={"version": version, "wait_s": POLL_S})
            if reply.status_code == 410:
                return
            desired = reply.raise_for_status().json()
            changed = int(desired["version"]) != version
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            if repr(error) != told:
                log.warning("the desired state cannot be read: %r", error)
            told = repr(error)
            await asyncio.sleep(next(waits))
            continue
        waits, told = retry_waits(), ""
        if changed:
            version = int(desired["version"])
            on_desired(desired)
