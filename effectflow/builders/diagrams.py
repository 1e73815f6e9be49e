"""Diagrams as text: boxes and arrows as a Mermaid flowchart. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal, TypeAlias

Mark: TypeAlias = Literal["plain", "visited", "current"]
"""Whether a run has visited a box, or is there now."""

COLORS: dict[Mark, tuple[str, str]] = {
    "visited": ("#e3f2e1", "#5b9a57"),
    "current": ("#ffe08a", "#c77700"),
}
"""The fill and the line of a marked box."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a diagram.

    Attributes:
        key: identifies the box for arrows; unique in the diagram, nested boxes included.
        label: the text in it; may have several lines.
        shape: "box", or "start" and "end" for the dots at the beginning and the end.
        mark: how it is coloured.
        inside: the boxes nested in it.
    """

    key: str
    label: str = ""
    shape: Literal["box", "start", "end"] = "box"
    mark: Mark = "plain"
    inside: tuple[Box, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow from one box to another, by their keys; dashed for the exceptional case."""

    source: str
    target: str
    label: str = ""
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Diagram:
    """Boxes and arrows."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def to_mermaid(diagram: Diagram) -> str:
    """Return the diagram as a Mermaid flowchart, which many Markdown viewers render.

    Example:
        >>> boxes = (Box("a", "draft", mark="visited"), Box("b", 'say "yes"', mark="current"))
        >>> print(to_mermaid(Diagram(boxes, (Arrow("a", "b", "done"),))))
        flowchart TD
            n0["draft"]
            n1["say #34;yes#34;"]
            n0 -->|"done"| n1
            classDef visited fill:#e3f2e1,stroke:#5b9a57,color:#000
            classDef current fill:#ffe08a,stroke:#c77700,color:#000
            class n0 visited
            class n1 current
        <BLANKLINE>
    """
    names = _names(diagram)
    lines = [line for box in diagram.boxes for line in _mermaid_box(box, names)]
    for arrow in diagram.arrows:
        label = f'|"{_mermaid_text(arrow.label)}"|' if arrow.label else ""
        line = "-.->" if arrow.is_dashed else "-->"
        lines.append(f"{names[arrow.source]} {line}{label} {names[arrow.target]}")
    marked = [box for box in _all_boxes(diagram.boxes) if box.mark != "plain"]
    if marked:
        lines += [
            f"classDef {mark} fill:{fill},stroke:{line},color:#000"
            for mark, (fill, line) in COLORS.items()
        ]
    lines += [f"class {names[box.key]} {box.mark}" for box in marked]
    return "\n".join(["flowchart TD", *(f"    {line}" for line in lines), ""])


def _mermaid_box(box: Box, names: dict[str, str]) -> Iterator[str]:
    name, text = names[box.key], _mermaid_text(box.label)
    if box.inside:
        yield f'subgraph {name}["{text}"]'
        for inner in box.inside:
            yield from (f"    {line}" for line in _mermaid_box(inner, names))
        yield "end"
        return
    opening, closing = {"box": ("[", "]"), "start": ("((", "))"), "end": ("(((", ")))")}[box.shape]
    yield f'{name}{opening}"{text or " "}"{closing}'


_SPECIAL = re.compile(r"[^\w \-.,:!?+=/()'→]")
# At the beginning of a line, Mermaid reads `- ` and `1. ` as the item of a list.
_LIST_MARK = re.compile(r"^( *\d*)([-+.])")


def _mermaid_text(text: str) -> str:
    """Return text for use in quotes, with code points for what Mermaid or HTML could interpret."""
    return "<br/>".join(map(_mermaid_line, text.split("\n")))


def _mermaid_line(line: str) -> str:
    plain = _SPECIAL.sub(lambda found: f"#{ord(found[0])};", line)
    return _LIST_MARK.sub(lambda found: f"{found[1]}#{ord(found[2])};", plain)


def _names(diagram: Diagram) -> dict[str, str]:
    """Name each box by a number, as any other name could be a keyword of Mermaid."""
    numbers = count()
    return {box.key: f"n{next(numbers)}" for box in _all_boxes(diagram.boxes)}


def _all_boxes(boxes: Iterable[Box]) -> Iterator[Box]:
    for box in boxes:
        yield box
        yield from _all_boxes(box.inside)
