"""All commands in one application."""

import typer

from elastrain.api.cli import (
    actions,
    checkpoints,
    cluster,
    curves,
    doctor,
    feeds,
    jobs,
    local,
    projects,
    watch,
)
from elastrain.api.cli.failures import guarded

EXIT_CODES = (
    "Exit codes: 0 ok, 1 job failed or was cancelled, 2 usage, 3 not found, 4 not allowed, 5 conflict, "
    "6 timed out, 7 server unreachable, 130 interrupted."
)

app = typer.Typer(
    name="elastrain",
    help="Elastic training: workers join, leave and die while the job trains on.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (local, jobs, actions, watch, feeds, curves, checkpoints, cluster, doctor, projects):
    for command in part.COMMANDS:
        app.command()(guarded(command))
app.add_typer(projects.app)
