"""`effectflow timeline`: when everything in a run happened, as bars in the terminal or as SVG."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import set_cell_size
from rich.text import Text

from effectflow.checkpoint import find_run
from effectflow.checkpoint.checkpoint import iso_time
from effectflow.checkpoint.journal_reader import read_existing
from effectflow.checkpoint.values import Tree
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse, LatestOption
from effectflow.cli.render import counted, when
from effectflow.cli.step_lines import COLOURS, WIDTH, cut_to, duration_text
from effectflow.observe.timeline import BarKind, Lane, Timeline, timeline_of
from effectflow.observe.timeline_picture import timeline_svg
from effectflow.stores._atomic_files import write_whole

_LABELS = 28
_FIRST, _LAST = 40, 20
_SIGNS: dict[BarKind, str] = {
    "queued": "-",
    "driven": "=",
    "waiting": ".",
    "paused": "|",
    "running": ">",
    "retrying": "~",
    "interrupted": "!",
    "completed": "#",
    "failed": "x",
    "cancelled": "/",
    "left": ":",
}
"""What fills the bars, so that they can be told apart without colours."""


@command(ServiceOption, latest=LatestOption)
async def timeline(
    access: Access,
    run_id: str,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write it as a picture, too.")
    ] = None,
) -> Answer:
    """Show when the steps, waits and attempts of a run happened, as bars."""
    entries = await read_existing(access.store, run_id, access.seal)
    info, now = await find_run(access.store, run_id), time.time()
    found = timeline_of(entries, now, is_held=info is not None and info.is_held(now))
    if svg is not None:
        write_picture(svg, timeline_svg(found, run_id))
    return Answer(_tree(found), _lines(found, run_id))


def write_picture(path: Path, text: str) -> None:
    """Write a file, completely or not at all. Raise BadUse if that is not possible."""
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise BadUse(f"cannot write {path}: {error.strerror}") from error


def _lines(found: Timeline, run_id: str) -> Iterable[str | Text]:
    took = duration_text(found.ended - found.began)
    yield f"{when(found.began)} to {when(found.ended)}, {took}"
    lanes = found.lanes
    many = len(lanes) > _FIRST + _LAST + 1
    for lane in lanes[:_FIRST] if many else lanes:
        yield _lane(found, lane, run_id)
    if many:
        yield f"  ... {counted(len(lanes) - _FIRST - _LAST, 'more lane')}; --svg FILE draws all"
        for lane in lanes[-_LAST:]:
            yield _lane(found, lane, run_id)
    used = {bar.kind for lane in lanes for bar in lane.bars}
    yield ""
    yield from _legend([kind for kind in _SIGNS if kind in used])


def _legend(kinds: Sequence[BarKind]) -> Iterable[str]:
    line = ""
    for kind in kinds:
        part = f"{_SIGNS[kind]} {kind}"
        if line and len(line) + len(part) + 3 > WIDTH:
            yield line
            line = ""
        line = f"{line}   {part}" if line else part
    yield line


def _lane(found: Timeline, lane: Lane, run_id: str) -> Text:
    label = cut_to(f"{'  ' * lane.depth}{lane.label or run_id}", _LABELS)
    line = Text(set_cell_size(label, _LABELS) + "  ")
    width = WIDTH - _LABELS - 2 - 8
    cells: list[BarKind | None] = [None] * width
    took = 0.0
    for bar in lane.bars:
        ended = found.ended if bar.ended is None else bar.ended
        took = ended - lane.bars[0].began
        first, last = (_cell(found, at, width) for at in (bar.began, ended))
        # The last cell belongs to the next bar, if there is one.
        for cell in range(first, max(last, first + 1)):
            cells[cell] = bar.kind
    for kind in cells:
        line.append(" " if kind is None else _SIGNS[kind], COLOURS.get(kind, "") if kind else "")
    line.append(f"{duration_text(took):>8}" if lane.bars else "")
    line.rstrip()
    return line


def _cell(found: Timeline, at: float, width: int) -> int:
    whole = max(found.ended - found.began, 0.001)
    return min(max(int((at - found.began) / whole * width), 0), width - 1)


def _tree(found: Timeline) -> dict[str, Tree]:
    return {
        "began_at": iso_time(found.began),
        "ended_at": iso_time(found.ended),
        "lanes": [
            {
                "label": lane.label,
                "depth": lane.depth,
                "bars": [
                    {
                        "kind": bar.kind,
                        "began_at": iso_time(bar.began),
                        "ended_at": iso_time(bar.ended),
                    }
                    for bar in lane.bars
                ],
            }
            for lane in found.lanes
        ],
    }
