"""The names in CHANGELOG.md that are not what they were."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.pages import ROOT

CODE = re.compile(r"`([^`]+)`")


def rows() -> Iterator[list[str]]:
    """Yield the cells of each row of the tables, without their heads."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        cells = row.split(" | ")
        if CODE.match(cells[0]):
            yield cells


def moved_names() -> Iterator[tuple[str, str, str]]:
    """Yield each name that has moved, the module that had it, and the one that has it."""
    for cells in rows():
        if len(cells) == 3:
            before, now = (cell.strip("`") for cell in cells[1:])
            yield from ((name, before, now) for name in CODE.findall(cells[0]))


def renamed() -> Iterator[tuple[str, str | None]]:
    """Yield each path that has another name, and that name; None if nothing took its place."""
    for cells in rows():
        if len(cells) == 2:
            now = cells[1]
            yield cells[0].strip("`"), now.strip("`") if CODE.fullmatch(now) else None
