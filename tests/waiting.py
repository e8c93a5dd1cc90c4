"""Waiting for what will happen, not for a number of seconds: right on a machine of any speed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(happened: Callable[[], object], at_most_s: float = 60.0) -> None:
    """Raises TimeoutError if it does not happen at all."""
    async with asyncio.timeout(at_most_s):
        while not happened():
            await asyncio.sleep(0.001)
