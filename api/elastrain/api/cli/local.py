"""Commands on this machine. What they do lies with the service and is imported when it is needed."""

from pathlib import Path
from typing import Annotated

import typer

from elastrain.client.errors import FixRequest, Unreachable
from elastrain.client.home import home


def tell(line: str) -> None:
    """At once, also into a pipe: somebody waits for the address."""
    print(line, flush=True)


def up(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The API's port, kept from then on.")
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(min=0, help="CPUs that jobs may use; all there are unless given.")
    ] = None,
) -> int:
    """Run everything on this machine: Ray, the store, the API. ctrl-C stops it cleanly."""
    from elastrain.api.serve import server
    from elastrain.service.up import Wishes
    from elastrain.service.up import up as run

    return run(home(), server, Wishes(host=host, port=port, cpus=cpus), tell)


def down() -> int:
    """Stop what runs here: an `up`, or what a killed one left."""
    from elastrain.service.up import down as stop

    return stop(home(), tell)


def demo(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A spec other than examples/digits.yaml.")
    ] = None,
) -> int:
    """Train with two workers, kill one, and show that nothing was lost: about three minutes."""
    from elastrain.api.cli.demo import demo as play

    return play(file)


def migrate() -> int:
    """Bring the service's database (ELASTRAIN_DATABASE_URL) to this version; safe at any time."""
    from elastrain.service.errors import Unavailable
    from elastrain.service.migrations import migrate as run
    from elastrain.service.settings import Settings, SettingsError

    try:
        found, newest = run(Settings.from_env().database_url)
    except SettingsError as error:
        raise FixRequest(str(error)) from None
    except Unavailable as error:
        raise Unreachable(f"{error.detail}: is ELASTRAIN_DATABASE_URL right?") from None
    done = "was there already" if found == newest else f"migrated from {found or 'an empty database'}"
    tell(f"database at revision {newest}: {done}")
    return 0


COMMANDS = (up, down, demo, migrate)
