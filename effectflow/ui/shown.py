"""How pages show times, durations and values: text, cut to a bound and without control characters."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup

from effectflow.checkpoint.errors import printable
from effectflow.checkpoint.values import Tree, bounded
from effectflow.effects.clock import in_words

LONGEST_VALUE = 4000
"""The characters of a value that a page shows; a download has all of it."""


def moment(seconds: float | None) -> Markup:
    """Return a time, which the browser shows in its own time zone.

    Parameters:
        seconds: since the epoch.
    """
    if seconds is None:
        return Markup("")
    at = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        at.isoformat(timespec="milliseconds"), utc(seconds)
    )


def utc(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as text."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float | None) -> str:
    """Return a duration in words."""
    return "" if seconds is None else in_words(seconds)


def value(tree: Tree, limit: int = LONGEST_VALUE) -> str:
    """Return a saved value as text, cut to this many characters."""
    return printable(bounded(tree, limit), keep="\n")


def plain(text: object) -> str:
    """Return text without characters that would hide or reorder other text."""
    return printable(str(text), keep="\n\t")


FILTERS = {"moment": moment, "duration": duration, "value": value, "plain": plain}
