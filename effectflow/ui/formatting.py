"""How pages show times, limits and values: text, cut to a bound and without control characters."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup

from effectflow.checkpoint.errors import printable
from effectflow.checkpoint.store import Queue
from effectflow.checkpoint.values import Tree, bounded

LONGEST_VALUE = 4000
"""The characters of a value that a page shows; a download has all of it."""


def moment(seconds: float | None, *, has_age: bool = False) -> Markup:
    """Return a time, which the browser shows in its own time zone.

    Parameters:
        seconds: since the epoch.
        has_age: whether the browser adds how long ago that was.
    """
    if seconds is None:
        return Markup("")
    at = datetime.fromtimestamp(seconds, UTC)
    precise = at.isoformat(timespec="milliseconds")
    # There is nothing to escape in it, and a page has many.
    age = " data-age" if has_age else ""
    return Markup(f'<time datetime="{precise}"{age}>{utc(seconds)}</time>')


def utc(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as text."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def took(seconds: float) -> str:
    """Return a duration with its two largest units, as in "1.25 s" and "2 h 5 min"."""
    seconds = max(seconds, 0.0)
    for size, unit, part, smaller in _UNITS:
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            left = f" {int(rest / part)} {smaller}" if rest >= part else ""
            return f"{int(whole)} {unit}{left}"
    if seconds >= 1 or not seconds:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def limits(queue: Queue) -> str:
    """Return the limits of a queue in words."""
    parts = [
        "" if queue.limit is None else f"{queue.limit} at once",
        "" if queue.per_second is None else f"{queue.per_second:g} per second",
        "" if queue.per_key is None else f"{queue.per_key} of a key",
        f"priority {queue.priority:+}" if queue.priority else "",
    ]
    return ", ".join(filter(None, parts)) or "none"


def value(tree: Tree, limit: int = LONGEST_VALUE) -> str:
    """Return a saved value as text, cut to this many characters."""
    return printable(bounded(tree, limit), keep="\n")


def plain(text: object, limit: int = LONGEST_VALUE) -> str:
    """Return text cut to this many characters, without those that would hide or reorder other text."""
    found = str(text)
    shown = found if len(found) <= limit else f"{found[:limit]}..."
    return printable(shown, keep="\n\t")


_LONGEST_LABEL = 160


def label(text: object) -> str:
    """Return the text of a link, without the middle of a long one: the end of a path tells what it is."""
    found, half = str(text), _LONGEST_LABEL // 2
    return plain(found if len(found) <= _LONGEST_LABEL else f"{found[:half]}…{found[-half:]}")


FILTERS = {
    "moment": moment,
    "utc": utc,
    "took": took,
    "value": value,
    "plain": plain,
    "label": label,
}
