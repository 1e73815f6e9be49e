"""What the commands print: text that is safe to show, tables, and JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import orjson
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from effectflow.checkpoint.errors import printable
from effectflow.cli.suggestions import message_of
from effectflow.effects.clock import in_words


def say(text: str, console: Console | None = None) -> None:
    """Print text on separate lines, escaped, without markup or line wrapping."""
    shown = Text(printable(text, keep="\n\t"))
    (console or Console()).print(shown, soft_wrap=True)


def say_lines(lines: Iterable[str | Text], console: Console | None = None) -> None:
    """Print each text on one line: line breaks in it are escaped, too.

    A `Text` is printed with its colours on a terminal; its maker has escaped it.
    """
    for line in lines:
        if isinstance(line, Text):
            (console or Console()).print(line, soft_wrap=True)
        else:
            say(printable(line), console)


def print_json(data: object, *, on_one_line: bool = False) -> None:
    """Print one JSON document on standard output. Errors in it are their messages."""
    try:
        option = 0 if on_one_line else orjson.OPT_INDENT_2
        text = orjson.dumps(data, default=_plain, option=option)
    except TypeError:
        # This module escapes lone surrogates, such as those in messages about file names.
        indent = None if on_one_line else 2
        text = json.dumps(data, default=_plain, indent=indent).encode()
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.flush()


def _plain(value: object) -> object:
    if isinstance(value, Exception):
        return message_of(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if dataclasses.is_dataclass(value):
        return fields_of(value)
    raise TypeError(f"{value!r} has no JSON")


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a data class by their names, as they are."""
    return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}


_MAX_WIDTH = 36
"""The longest cell of a table that other rows align with: a UUID. A longer one moves only its row."""


def table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield each row as one line, in aligned columns. Cut nothing."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [
        max((length for length in map(cell_len, column) if length <= _MAX_WIDTH), default=0)
        for column in zip(*cells, strict=True)
    ]
    for row in cells:
        aligned = (
            set_cell_size(cell, max(width, cell_len(cell)))
            for cell, width in zip(row, widths, strict=True)
        )
        yield "  ".join(aligned).rstrip()


def terminal_width() -> int:
    """Return the number of columns of the terminal; a huge number if the output goes elsewhere."""
    return Console().width if sys.stdout.isatty() else sys.maxsize


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 step", "2 steps" or "2 entries"."""
    plural = noun.removesuffix("y") + "ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def age(seconds: float) -> str:
    """Return how long ago something was."""
    return f"{in_words(seconds)} ago"


def when(seconds: float) -> str:
    """Return a time of the local clock."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
