"""Notes (PEP 678) on exceptions, which are told anew each time that one is used again.

An error value may be failed with many times, by effects that are run many times. What it was told the
last time is forgotten when it is used again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

__all__ = ["add_note", "forget_notes", "show_trail"]

_OURS = "_effectflow_notes"


def add_note(error: BaseException, note: str) -> None:
    """Add a note, and remember that it is ours. An exception that is frozen goes without."""
    # With slots a frozen data class refuses by a TypeError.
    with suppress(AttributeError, TypeError):
        error.add_note(note)
        vars(error).setdefault(_OURS, []).append(note)


def forget_notes(error: object) -> None:
    """Take away the notes that we added when the error was used before."""
    if isinstance(error, BaseException):
        for note in vars(error).pop(_OURS, ()):
            with suppress(AttributeError, ValueError):
                error.__notes__.remove(note)


def show_trail(error: Any, trail: tuple[str, ...]) -> Any:
    """The error, with its trail as notes if it is an exception."""
    if trail and isinstance(error, BaseException):
        known = getattr(error, "__notes__", ())
        for message in trail:
            if message not in known:
                add_note(error, message)
    return error
