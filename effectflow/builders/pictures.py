"""Diagrams as SVG pictures: boxes in layers from top to bottom, with the boxes in them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from effectflow.builders.diagrams import COLORS, Arrow, Box, Diagram
from effectflow.checkpoint.errors import printable

_CHARACTER, _LINE, _PAD, _GAP_X, _GAP_Y = 7.2, 16.0, 10.0, 36.0, 48.0
_LONGEST = 48
"""The characters of a line of a label that are drawn."""


def to_svg(diagram: Diagram) -> str:
    """Return the diagram as an SVG document.

    Example:
        >>> boxes = (Box("a", "draft", mark="visited"), Box("b", "review"))
        >>> picture = to_svg(Diagram(boxes, (Arrow("a", "b", "done"),)))
        >>> picture.startswith("<svg "), picture.count("<rect"), picture.count("<path")
        (True, 3, 2)
    """
    drawn = layout_of(diagram)
    tip = '<path d="M0 0L8 4L0 8z" fill="#555"/>'
    marker = 'id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"'
    lines = [svg_opening(drawn.width, drawn.height)]
    lines.append(f'<defs><marker {marker} orient="auto">{tip}</marker></defs>')
    lines.append(f'<rect width="{drawn.width:g}" height="{drawn.height:g}" fill="white"/>')
    for place in drawn.boxes:
        lines += _box_lines(place)
    for line in drawn.arrows:
        lines += _arrow_lines(line)
    return "\n".join([*lines, "</svg>", ""])


def svg_opening(width: float, height: float) -> str:
    """Return the first tag of an SVG document of this size."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="12">'
    )


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A box of a picture, and its place in it.

    Attributes:
        lines: the lines of its label, as they are drawn.
    """

    box: Box
    left: float
    top: float
    width: float
    height: float
    lines: tuple[str, ...]

    @property
    def middle(self) -> float:
        """The middle of its width."""
        return self.left + self.width / 2


@dataclass(frozen=True, slots=True)
class PlacedArrow:
    """An arrow of a picture: its path in SVG, and where its label begins."""

    arrow: Arrow
    path: str
    left: float
    top: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of everything in a picture of a diagram. A box comes before those in it."""

    width: float
    height: float
    boxes: tuple[PlacedBox, ...]
    arrows: tuple[PlacedArrow, ...]


def layout_of(diagram: Diagram) -> Layout:
    """Return where everything in the picture of a diagram is."""
    drawn = _layout(diagram.boxes, diagram.arrows)
    places = dict(_absolute(drawn, _PAD, _PAD))
    longest = max((len(arrow.label) for arrow in diagram.arrows), default=0)
    width = drawn.width + 2 * _PAD + _GAP_X + longest * _CHARACTER
    arrows = (_placed(one, places[one.source], places[one.target]) for one in diagram.arrows)
    return Layout(width, drawn.height + 2 * _PAD, tuple(places.values()), tuple(arrows))


@dataclass(slots=True)
class _Group:
    """Boxes with their places in the box around them."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[tuple[float, float, Box, float, float, _Group]] = field(
        default_factory=list[tuple[float, float, Box, float, float, "_Group"]]
    )


def _layout(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> _Group:
    """Place boxes in rows: each below those from which arrows first lead to it."""
    group = _Group()
    rows: dict[int, list[tuple[Box, float, float, _Group]]] = {}
    layers = _layers(boxes, arrows)
    for box in boxes:
        inside = _layout(box.inside, arrows)
        text = _lines_of(box)
        width = max((len(line) for line in text), default=0) * _CHARACTER + 2 * _PAD
        height = len(text) * _LINE + _PAD
        if box.shape != "box":
            width = height = 20.0
        elif box.inside:
            width, height = max(width, inside.width + 2 * _PAD), height + inside.height + _PAD
        rows.setdefault(layers[box.key], []).append((box, width, height, inside))
    widths = {
        layer: sum(width for _, width, _, _ in row) + _GAP_X * (len(row) - 1)
        for layer, row in rows.items()
    }
    group.width = max(widths.values(), default=0.0)
    top = 0.0
    for layer in sorted(rows):
        left = (group.width - widths[layer]) / 2
        tallest = max(height for _, _, height, _ in rows[layer])
        for box, width, height, inside in rows[layer]:
            group.boxes.append((left, top + (tallest - height) / 2, box, width, height, inside))
            left += width + _GAP_X
        top += tallest + _GAP_Y
    group.height = max(top - _GAP_Y, 0.0)
    return group


def _layers(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> dict[str, int]:
    """Return the row of each box: its distance from a box without arrows to it. An end comes last."""
    keys = {box.key for box in boxes}
    targets: dict[str, list[str]] = {}
    for arrow in arrows:
        if arrow.source in keys and arrow.target in keys and arrow.source != arrow.target:
            targets.setdefault(arrow.source, []).append(arrow.target)
    reached = {target for found in targets.values() for target in found}
    layers: dict[str, int] = {}
    # What no arrow reaches comes first, and then, for what only a cycle reaches, each box in turn.
    for first in [box.key for box in boxes if box.key not in reached] + [box.key for box in boxes]:
        row = [first] if first not in layers else []
        layer = 0
        while row:
            layers.update((key, layer) for key in row)
            later = [target for key in row for target in targets.get(key, ())]
            row = [key for key in dict.fromkeys(later) if key not in layers]
            layer += 1
    last = max(layers.values(), default=0)
    ends = [box.key for box in boxes if box.shape == "end" and box.key in reached]
    others = [layer for key, layer in layers.items() if key not in ends]
    return layers | dict.fromkeys(ends, max([last, *(layer + 1 for layer in others)]))


def _absolute(group: _Group, left: float, top: float) -> Iterator[tuple[str, PlacedBox]]:
    for x, y, box, width, height, inside in group.boxes:
        lines = tuple(_lines_of(box))
        yield box.key, PlacedBox(box, left + x, top + y, width, height, lines)
        below = len(_lines_of(box)) * _LINE + _PAD
        yield from _absolute(inside, left + x + (width - inside.width) / 2, top + y + below)


def _lines_of(box: Box) -> list[str]:
    lines = [printable(line) for line in box.label.split("\n")] if box.label else []
    return [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..." for line in lines]


def _box_lines(place: PlacedBox) -> Iterator[str]:
    box = place.box
    fill, line = COLORS.get(box.mark, ("#ffffff", "#888888"))
    if box.shape != "box":
        ring = ' stroke="#555" stroke-width="3"' if box.shape == "end" else ""
        inner = "white" if box.shape == "end" else "#555"
        yield (
            f'<circle cx="{place.middle:g}" cy="{place.top + 10:g}" r="8" fill="{inner}"{ring}/>'
        )
        return
    yield (
        f'<rect x="{place.left:g}" y="{place.top:g}" width="{place.width:g}" height="{place.height:g}" '
        f'rx="5" fill="{"#fafafa" if box.inside and box.mark == "plain" else fill}" stroke="{line}"/>'
    )
    for number, text in enumerate(place.lines, 1):
        yield (
            f'<text x="{place.middle:g}" y="{place.top + number * _LINE:g}" text-anchor="middle">'
            f"{escape(text)}</text>"
        )


def _placed(arrow: Arrow, source: PlacedBox, target: PlacedBox) -> PlacedArrow:
    """Return an arrow in its place: straight to a lower row, otherwise in a curve on the right."""
    if target.top >= source.top + source.height:
        x1, y1, x2, y2 = source.middle, source.top + source.height, target.middle, target.top
        path = f"M{x1:g} {y1:g}L{x2:g} {y2:g}"
        return PlacedArrow(arrow, path, (x1 + x2) / 2 + 4, (y1 + y2) / 2)
    x1, y1 = source.left + source.width, source.top + source.height * 0.6
    x2, y2 = target.left + target.width, target.top + target.height * 0.4
    far = max(x1, x2) + _GAP_X * 0.8
    path = f"M{x1:g} {y1:g}C{far:g} {y1:g} {far:g} {y2:g} {x2:g} {y2:g}"
    return PlacedArrow(arrow, path, max(x1, x2) + 8, (y1 + y2) / 2 - 8)


def _arrow_lines(line: PlacedArrow) -> Iterator[str]:
    dash = ' stroke-dasharray="4 3"' if line.arrow.is_dashed else ""
    yield f'<path d="{line.path}" fill="none" stroke="#555"{dash} marker-end="url(#tip)"/>'
    if line.arrow.label:
        label = printable(line.arrow.label)
        yield f'<text x="{line.left:g}" y="{line.top:g}" fill="#555">{escape(label)}</text>'
