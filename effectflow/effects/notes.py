"""Notes (PEP 678) on exceptions that are used more than once.

Effects that run many times may fail with the same error object. When it is used again, the notes of the
last time are removed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

__all__ = ["add_note", "forget_notes", "show_trail"]

_OURS = "_effectflow_notes"


def add_note(error: BaseException, note: str) -> None:
    """Add a note and remember that we added it. A frozen exception gets none."""
    # A frozen dataclass with slots raises TypeError.
    with suppress(AttributeError, TypeError):
        error.add_note(note)
        vars(error).setdefault(_OURS, []).append(note)


def forget_notes(error: object) -> None:
    """Remove the notes that we added when the error was used before."""
    if isinstance(error, BaseException):
        for note in vars(error).pop(_OURS, ()):
            with suppress(AttributeError, ValueError):
                error.__notes__.remove(note)


def show_trail(error: Any, trail: tuple[str, ...]) -> Any:
    """Return the error, with its trail as notes if it is an exception."""
    if trail and isinstance(error, BaseException):
        known = getattr(error, "__notes__", ())
        for message in trail:
            if message not in known:
                add_note(error, message)
    return error
