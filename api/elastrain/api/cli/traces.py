"""A failed job's message with the user's own error in front: what, and where; the rest on request."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

FRAME = re.compile(r'^\s*File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<where>.+))?$')
# frames of installed libraries, of Python itself and of ours are not where a user looks first
FOREIGN = re.compile(r"site-packages/|dist-packages/|/lib/python\d|/elastrain/trainers/(?!tasks/)|^<")


@dataclass(frozen=True)
class Trace:
    """`error` such as "NameError: name 'x' is not defined"; `place` such as "script.py:12 in loss"."""

    error: str
    place: str | None
    code: str | None


def read(message: str) -> Trace | None:
    """The last traceback in `message`, or None if there is none."""
    lines = message.rstrip().splitlines()
    frames = [(number, match) for number, line in enumerate(lines) if (match := FRAME.match(line))]
    if not frames:
        return None
    own = [frame for frame in frames if not FOREIGN.search(frame[1]["file"])]
    number, frame = own[-1] if own else frames[-1]
    after = lines[number + 1].strip() if number + 1 < len(lines) else ""
    place = f"{PurePath(frame['file']).name}:{frame['line']}" + (
        f" in {frame['where']}" if frame["where"] else ""
    )
    return Trace(_error(lines, frames[-1][0]), place, after or None)


def _error(lines: list[str], last_frame: int) -> str:
    """The exception's own lines: the first after the last frame that is not indented, and what follows it."""
    for number in range(last_frame + 1, len(lines)):
        if lines[number] and not lines[number][0].isspace():
            return "\n".join(lines[number:])
    return lines[-1].strip()


def headline(message: str) -> str:
    """A message in one line: its error if it is a traceback, else its first line."""
    trace = read(message)
    first, _, rest = plain(trace.error if trace else message).strip().partition("\n")
    return f"{first} ..." if rest else first


def plain(text: str) -> str:
    """Text of a user's code without what a terminal would obey: colours, cursor moves, its title."""
    return "".join(
        character if character in "\n\t" or character.isprintable() else f"\\x{ord(character):02x}"
        for character in text
    )


def failure_lines(job: Mapping[str, Any], *, whole: bool = False) -> list[str]:
    """A failed job in a few lines; with `whole`, the full trace above them."""
    message = plain(str(job.get("message") or job.get("reason") or "it left no message"))
    blame = f" (by {job['failed_by']})" if job.get("failed_by") else ""
    trace = read(message)
    if trace is None:
        return [f"Job {job['id']} {job['status']}{blame}: {message}"]
    lines = [*message.splitlines(), ""] if whole else []
    lines.append(f"Job {job['id']} {job['status']}{blame}: {trace.error}")
    lines += [f"  at {trace.place}"] if trace.place else []
    lines += [f"    {trace.code}"] if trace.code else []
    if not whole:
        lines.append(f"The whole trace: elastrain get {job['id']} --trace")
    return lines
