"""`python -m elastrain.api.serve`: the service in one process, set up by ELASTRAIN_* variables only."""

import uvicorn

from elastrain.api.app import create_app
from elastrain.service.control import Control


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
