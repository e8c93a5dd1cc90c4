"""The REST application, put together from finished parts."""

from importlib.metadata import version

from fastapi import FastAPI

from elastrain.api import errors
from elastrain.api.door import Door, documented
from elastrain.api.measured import Measured
from elastrain.api.replies import Reply
from elastrain.api.routes import checkpoints, cluster, driver, feeds, health, jobs, packages, projects
from elastrain.api.traced import Traced
from elastrain.api.writers import Writers
from elastrain.service.control import Control


def create_app(control: Control) -> FastAPI:
    """The app over one service. It holds no state of its own: two of them on one store are as good as one."""
    app = FastAPI(
        title="elastrain",
        summary="Elastic training on Ray: workers join, leave and die while the job trains on.",
        version=version("elastrain"),
        default_response_class=Reply,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.control = control
    app.state.writers = Writers(one_at_a_time=control.store.is_sqlite)
    app.add_middleware(Door, control=control)
    app.add_middleware(Measured, meters=control.meters)  # the last one is the outermost
    if control.tracing.on:
        app.add_middleware(Traced, tracing=control.tracing)
    errors.install(app)
    # asked in this order for each request: those that are asked most come first
    app.include_router(driver.router, prefix="/v1")
    for part in (jobs, feeds, checkpoints, packages, projects, cluster):
        app.include_router(part.router, prefix="/v1", dependencies=[documented])
    app.include_router(health.router)
    return app
