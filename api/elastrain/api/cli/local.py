"""Commands on this machine. What they do lies with the service and is imported when it is needed."""

from collections.abc import Callable

COMMANDS: tuple[Callable[..., int | None], ...] = ()
