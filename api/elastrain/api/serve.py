"""`python -m elastrain.api.serve`: the service, set up by ELASTRAIN_* variables only.

One process is what most need. With `--workers N`, on PostgreSQL, N processes answer at one address, each with
an interpreter of its own. One of them leads and moves the jobs, as with services on several machines.
"""

import argparse
import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from elastrain.api.app import create_app
from elastrain.api.metrics import counted_together
from elastrain.service import interpreter
from elastrain.service.assembly import Service
from elastrain.service.control import Control
from elastrain.service.errors import Unavailable
from elastrain.service.pace import cause
from elastrain.service.settings import Settings, SettingsError

# until a process that does not answer is replaced; on a busy machine it is seconds in its imports
PROCESS_SILENT_S = 60


OPTIONS: dict[str, Any] = {
    "ws": "none",
    "log_config": None,  # logging is the process's own affair
    "access_log": False,
    "server_header": False,
    "timeout_graceful_shutdown": 3,  # followers would hold it open for as long as their jobs live
}


def server(control: Control, host: str, port: int) -> uvicorn.Server:
    """A uvicorn server over `control`, not started; `.run()` blocks, `.should_exit = True` ends it."""
    return uvicorn.Server(uvicorn.Config(create_app(control), host=host, port=port, **OPTIONS))


def application() -> FastAPI:
    """The app with a service of its own: what uvicorn calls in each of several processes."""
    begin()
    service = Service(Settings.from_env())

    @asynccontextmanager
    async def serving(_: FastAPI) -> AsyncIterator[None]:
        with service:
            interpreter.settle()
            yield

    app = create_app(service.control)
    app.router.lifespan_context = serving
    return app


def begin() -> None:
    """What a process of the service sets up for itself."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    interpreter.share()


def main(arguments: list[str] | None = None) -> int:
    """Runs the service until SIGTERM or ctrl-C. Jobs train on, and the next start picks them up again."""
    parser = argparse.ArgumentParser(prog="python -m elastrain.api.serve", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8470, help="port to listen on")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes that answer; more than one takes PostgreSQL"
    )
    asked = parser.parse_args(arguments)
    begin()
    try:
        settings = Settings.from_env()
        if asked.workers > 1 and settings.database_url.startswith("sqlite"):
            raise SettingsError(
                f"--workers {asked.workers} takes PostgreSQL (ELASTRAIN_DATABASE_URL): SQLite has one writer"
            )
        service = Service(settings)
        service.control.auth.ensure_admin_token(settings.home / "token")
    except SettingsError as error:
        return said(str(error), 2)
    except OSError as error:
        return said(f"ELASTRAIN_HOME: {error}", 2)
    except Unavailable as error:
        return said(f"{error.detail} (ELASTRAIN_DATABASE_URL): {cause(error)}", 1)
    # uvicorn hands the signal on when it has ended, and by default that ends us before the service is closed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    if asked.workers > 1:
        service.close()  # the tables are there, and the settings are sound
        where: dict[str, Any] = {"host": asked.host, "port": asked.port, "workers": asked.workers}
        where["timeout_worker_healthcheck"] = PROCESS_SILENT_S
        with counted_together():
            uvicorn.run("elastrain.api.serve:application", factory=True, **where, **OPTIONS)
        return 0
    with service:
        serving = server(service.control, asked.host, asked.port)
        interpreter.settle()
        serving.run()
    return 1  # it ended by itself: the port is taken, and the log says so


def said(text: str, code: int) -> int:
    """Why there is no service; returns the exit code."""
    print(f"Error: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
