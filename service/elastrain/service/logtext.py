"""Bytes that user code printed, as text: always valid, never cut inside a character. Pure functions.

A character belongs to the page in which it begins, whatever offsets the pages were asked with; so pages that
touch give every character once. Bytes that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import codecs

# a UTF-8 character has at most this many bytes after its first
MAX_REST = 3


def rest_length(before: bytes, after: bytes) -> int:
    """How many bytes at the start of `after` finish a character that begins in `before`.

    before: the bytes just before a cut (the last three are enough). after: those just behind it.
    """
    for back in range(1, min(MAX_REST, len(before)) + 1):
        lead = before[-back]
        if lead & 0xC0 == 0x80:
            continue  # a continuation byte: the character begins further ahead
        length = character_length(lead)
        rest = length - back
        whole = before[len(before) - back :] + after[:rest] if rest > 0 else b""
        return rest if rest > 0 and len(whole) == length and _valid(whole) else 0
    return 0


def unfinished_length(data: bytes) -> int:
    """How many bytes at the end of `data` are the beginning of a character that is not all there."""
    for back in range(1, min(MAX_REST, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 == 0x80:
            continue
        return back if character_length(lead) > back else 0
    return 0


def character_length(lead: int) -> int:
    """Bytes of the character that begins with this byte; 1 for a byte that begins none."""
    if 0xC2 <= lead <= 0xDF:
        return 2
    if 0xE0 <= lead <= 0xEF:
        return 3
    return 4 if 0xF0 <= lead <= 0xF4 else 1


def text_of(data: bytes) -> str:
    """Each byte that belongs to no character is one U+FFFD: a cut between two of them does not show."""
    return data.decode("utf-8", _EACH)


def _replace_each(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


_EACH = "elastrain.replace_each"
codecs.register_error(_EACH, _replace_each)


def lines_of(data: bytes, offset: int) -> list[tuple[int, bytes]]:
    """(offset, line with its end) for each line. Only a newline ends one: a progress bar stays one line."""
    lines = []
    for line in data.split(b"\n"):
        lines.append((offset, line + b"\n"))
        offset += len(line) + 1
    last_offset, last = lines.pop()
    return [*lines, (last_offset, last[:-1])] if len(last) > 1 else lines


def _valid(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
