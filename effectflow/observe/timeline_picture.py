"""A timeline as an SVG picture. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape

from effectflow.builders.pictures import svg_opening
from effectflow.checkpoint.errors import printable
from effectflow.observe.timeline import Bar, BarKind, Lane, Timeline

_COLOURS: dict[BarKind, str] = {
    "queued": "#c9c9c9",
    "driven": "#6b8fb5",
    "waiting": "#ffe08a",
    "paused": "#8d7fb5",
    "running": "#4a90d9",
    "retrying": "#f2b36b",
    "interrupted": "#c7a0d9",
    "completed": "#5b9a57",
    "failed": "#d0504a",
    "cancelled": "#9a9a9a",
    "left": "#dddddd",
}
_ROW, _LABELS, _BARS = 20, 260, 900
_LEGEND = 100
_MOST_LABEL = 36


def timeline_svg(timeline: Timeline, title: str) -> str:
    """Return a timeline as an SVG document, with a row for each lane. Bars tell their times on hover.

    Parameters:
        timeline: the timeline.
        title: the name of the run; the label of its lane.
    """
    width, height = _LABELS + _BARS + 20, _ROW * (len(timeline.lanes) + 3)
    lines = [
        svg_opening(width, height),
        f"<title>{_text(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _label(_LABELS, 0, f"{_moment(timeline.began)} UTC"),
        _label(_LABELS + _BARS, 0, _moment(timeline.ended), anchor="end"),
    ]
    for row, lane in enumerate(timeline.lanes, 1):
        lines += _lane(timeline, lane, row, title)
    lines += _legend(timeline, len(timeline.lanes) + 1)
    return "\n".join([*lines, "</svg>", ""])


def _lane(timeline: Timeline, lane: Lane, row: int, title: str) -> Iterator[str]:
    label = lane.label or title
    short = label if len(label) <= _MOST_LABEL else f"{label[:_MOST_LABEL]}…"
    yield _label(8 + 12 * lane.depth, row, short)
    for bar in lane.bars:
        left, right = (
            _x(timeline, bar.began),
            _x(timeline, timeline.ended if bar.ended is None else bar.ended),
        )
        yield (
            f'<rect x="{left:.1f}" y="{row * _ROW + 4}" width="{max(right - left, 1):.1f}" '
            f'height="{_ROW - 6}" fill="{_COLOURS[bar.kind]}"><title>{_text(_told(label, bar))}'
            "</title></rect>"
        )


def _x(timeline: Timeline, at: float) -> float:
    whole = max(timeline.ended - timeline.began, 0.001)
    return _LABELS + _BARS * min(max((at - timeline.began) / whole, 0.0), 1.0)


def _legend(timeline: Timeline, row: int) -> Iterator[str]:
    used = {bar.kind for lane in timeline.lanes for bar in lane.bars}
    shown = [(kind, colour) for kind, colour in _COLOURS.items() if kind in used]
    for number, (kind, colour) in enumerate(shown):
        left, top = _LABELS + _LEGEND * number, row * _ROW + 10
        yield f'<rect x="{left}" y="{top}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{left + 16}" y="{top + 10}">{kind}</text>'


def _label(left: float, row: int, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{left}" y="{row * _ROW + 15}" text-anchor="{anchor}">{_text(text)}</text>'


def _told(label: str, bar: Bar) -> str:
    took = "" if bar.ended is None else f", {max(bar.ended - bar.began, 0):.3f} s"
    return f"{label}: {bar.kind} from {_moment(bar.began)}{took}"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _text(text: str) -> str:
    return escape(printable(text))
