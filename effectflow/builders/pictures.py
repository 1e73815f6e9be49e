"""Diagrams as SVG pictures. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from effectflow.builders.diagrams import COLORS, Diagram
from effectflow.builders.layout import LINE, PlacedArrow, PlacedBox, layout_of
from effectflow.checkpoint.errors import printable


def to_svg(diagram: Diagram) -> str:
    """Return the diagram as an SVG document.

    Example:
        >>> from effectflow.observe import Arrow, Box
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
            f'<text x="{place.middle:g}" y="{place.top + number * LINE:g}" text-anchor="middle">'
            f"{escape(text)}</text>"
        )


def _arrow_lines(line: PlacedArrow) -> Iterator[str]:
    dash = ' stroke-dasharray="4 3"' if line.arrow.is_dashed else ""
    yield f'<path d="{line.path}" fill="none" stroke="#555"{dash} marker-end="url(#tip)"/>'
    if line.arrow.label:
        label = printable(line.arrow.label)
        yield f'<text x="{line.left:g}" y="{line.top:g}" fill="#555">{escape(label)}</text>'
