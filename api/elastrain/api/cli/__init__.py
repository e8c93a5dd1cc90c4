"""The command line, `elastrain`: one file per thing that commands are about. No torch and no Ray in here."""


def main() -> None:
    """The console script; exits with the code of the command."""
    from elastrain.api.cli.app import app

    app()
