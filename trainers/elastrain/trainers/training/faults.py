"""Exceptions in user code, made readable: what went wrong first, the user's own lines, and no others."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from elastrain.trainers.exchange.collectives import Broken, Halted
from elastrain.trainers.membership.messages import Fault

_OURS = str(Path(__file__).resolve().parents[1])  # trainers, all rooms of it
_LIBRARY = ("site-packages", "dist-packages", "<frozen", f"{Path(traceback.__file__).parent}/")
_OTHERS_SHOWN = 5  # frames below the user's last one, e.g. in torch

AT_ONCE = (ImportError, SyntaxError)


class UserFault(Exception):
    """The step cannot go on, for a reason that the coordinator has to judge."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.error)
        self.fault = fault


@contextlib.contextmanager
def blamed_on_user(phase: str, step: int | None = None, microbatch: int | None = None) -> Iterator[None]:
    """Whatever the body raises becomes a UserFault that knows its place. So does sys.exit: user code may end
    itself, not the worker, which would look like a crash in native code."""
    try:
        yield
    except (Halted, Broken):
        raise
    except (Exception, SystemExit) as error:
        raise UserFault(describe(error, phase, step, microbatch)) from error


def refuse(text: str) -> NoReturn:
    """A verdict that every worker reaches alike: the job must not go on."""
    raise UserFault(Fault("verdict", text, ""))


def internal(error: Exception) -> Fault:
    """Our own code failed: nothing to blame the user for."""
    whole = "".join(traceback.format_exception(error))
    return Fault("internal", f"elastrain's own code raised {type(error).__name__}: {error}", whole)


def describe(
    error: BaseException, phase: str, step: int | None = None, microbatch: int | None = None
) -> Fault:
    """An exception as people want to read it: the error and file:line first, then their own frames."""
    frames = traceback.extract_tb(error.__traceback__)
    kept = [f for f in frames if not f.filename.startswith(_OURS) or "/tasks/" in f.filename]
    users = [i for i, f in enumerate(kept) if not any(part in f.filename for part in _LIBRARY)]
    last = users[-1] if users else -1
    shown = [f for i, f in enumerate(kept) if i in users or last < i <= last + _OTHERS_SHOWN][-20:]
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({Path(error.filename).name}:{error.lineno})"
    elif users:
        where = f" ({Path(kept[last].filename).name}:{kept[last].lineno})"
    text = "".join(["Traceback (most recent call last):\n", *traceback.format_list(shown)])
    text += "".join(traceback.format_exception_only(error))
    headline = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return Fault(phase, f"{headline}{where}", text, step, microbatch, at_once=isinstance(error, AT_ONCE))
