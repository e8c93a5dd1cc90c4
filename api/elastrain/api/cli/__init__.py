"""The command line, `elastrain`: one file per thing that commands are about. No torch and no Ray in here."""


def main() -> None:
    """The console script; exits with the code of the command."""
    import sys

    from elastrain.api.cli.app import app

    for stream in (sys.stdout, sys.stderr):  # a terminal that has no letter for something still gets the rest
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    app()
