"""`python -m elastrain.api.serve`: the service in one process, set up by ELASTRAIN_* variables only."""

import argparse
import logging
import signal
import sys

import uvicorn

from elastrain.api.app import create_app
from elastrain.service.assembly import Service
from elastrain.service.control import Control
from elastrain.service.errors import Unavailable
from elastrain.service.settings import Settings, SettingsError

# how long a thread may compute before another one gets its turn; Python's own 5 ms are felt in every request
# that is answered while the reconciler plans a long queue
SWITCH_S = 0.001


def server(control: Control, host: str, port: int) -> uvicorn.Server:
    """A uvicorn server over `control`, not started; `.run()` blocks, `.should_exit = True` ends it."""
    config = uvicorn.Config(
        create_app(control),
        host=host,
        port=port,
        ws="none",
        log_config=None,  # logging is the process's own affair
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,  # followers would hold it open for as long as their jobs live
    )
    return uvicorn.Server(config)


def main(arguments: list[str] | None = None) -> int:
    """Runs the service until SIGTERM or ctrl-C. Jobs train on, and the next start picks them up again."""
    parser = argparse.ArgumentParser(prog="python -m elastrain.api.serve", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8470, help="port to listen on")
    asked = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        settings = Settings.from_env()
        service = Service(settings)
    except SettingsError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except Unavailable as error:
        print(f"Error: {error.detail} (ELASTRAIN_DATABASE_URL)", file=sys.stderr)
        return 1
    # uvicorn hands the signal on when it has ended, and by default that ends us before the service is closed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    sys.setswitchinterval(SWITCH_S)
    with service:
        service.control.auth.ensure_admin_token(settings.home / "token")
        server(service.control, asked.host, asked.port).run()
    return 1  # it ended by itself: the port is taken, and the log says so


if __name__ == "__main__":
    sys.exit(main())
