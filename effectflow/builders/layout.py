"""Where the boxes and arrows of a diagram go: in rows from top to bottom. Pure.

This is the layered drawing of Sugiyama, Tagawa and Toda. Each box goes below those that lead to it,
except by an arrow that closes a cycle. Rows are ordered so that few arrows cross, and then all goes as
near as it can to what it is connected with. An arrow has a place of its own in each row that it passes,
and so has its label: no arrow crosses a box, and no label covers another.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from statistics import fmean

from effectflow.builders.diagrams import Arrow, Box, Diagram
from effectflow.checkpoint.errors import printable

LINE = 16.0
"""The height of a line of text."""

_CHARACTER, _PAD, _DOT, _LOOP = 7.2, 10.0, 20.0, 26.0
_BESIDE, _BETWEEN, _PORTS = 28.0, 24.0, 14.0
"""The least distance beside a box and between two rows, and the most between two arrows at a box."""

_LEAST_BEND = 1.0

_LONGEST = 48
"""The characters of a line of a label that are drawn."""

_MOST_VISITS, _LEAST_SWEEPS, _MOST_SWEEPS, _SETTLED = 40_000, 3, 150, 0.5
"""How often places are visited to improve a picture, so that a large one does not take for ever."""

_STRAIGHT = 8
"""How much more it counts that a long arrow is straight than that boxes are near."""


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
    """Return where everything in the picture of a diagram is.

    Arrows lead to boxes that are in the same box, or in none.

    Example:
        >>> boxes = (Box("a", "draft"), Box("b", "review"))
        >>> drawn = layout_of(Diagram(boxes, (Arrow("a", "b"), Arrow("b", "a"))))
        >>> [draft, review] = drawn.boxes
        >>> review.top > draft.top + draft.height
        True
    """
    group = _arranged(diagram.boxes, diagram.arrows)
    boxes, arrows = _boxes_of(group, _PAD, _PAD), _arrows_of(group, _PAD, _PAD)
    return Layout(group.width + 2 * _PAD, group.height + 2 * _PAD, (*boxes,), (*arrows,))


@dataclass(slots=True, eq=False)
class _Place:
    """A place in a row: that of a box, or of an arrow that passes there, maybe with its label.

    Attributes:
        before, after: how far it reaches to the left and to the right of `x`.
        is_line: whether it is that of an arrow.
        x: the middle of its box, or the line of its arrow.
        row_top, row_bottom: where its row is.
        above, below: the places in the rows next to it that arrows connect it with.
    """

    before: float
    after: float
    height: float
    is_line: bool = False
    x: float = 0.0
    row_top: float = 0.0
    row_bottom: float = 0.0
    above: list[_Place] = field(default_factory=list["_Place"])
    below: list[_Place] = field(default_factory=list["_Place"])

    @property
    def top(self) -> float:
        """The top of what is in the middle of its row."""
        return (self.row_top + self.row_bottom - self.height) / 2


@dataclass(frozen=True, slots=True)
class _Route:
    """The places of an arrow, from its upper box to its lower one."""

    arrow: Arrow
    places: Sequence[_Place]
    is_upwards: bool

    @property
    def label(self) -> _Place:
        """The place of its label: next to its source."""
        return self.places[-2 if self.is_upwards else 1]


@dataclass(frozen=True, slots=True)
class _Group:
    """Boxes that are in the same box, or in none, with what is in them, and the arrows between them.

    Attributes:
        loops: the arrows from a box to itself, and how far below its middle each has its label.
    """

    width: float
    height: float
    boxes: Sequence[tuple[Box, _Place, _Group]]
    routes: Sequence[_Route]
    loops: Sequence[tuple[Arrow, _Place, float]]


def _arranged(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> _Group:
    if not boxes:
        return _Group(0.0, 0.0, (), (), ())
    keys = {box.key for box in boxes}
    between = [one for one in arrows if one.source in keys and one.target in keys]
    loops = {key: [one for one in between if one.source == key == one.target] for key in keys}
    between = [one for one in between if one.source != one.target]
    insides = [_arranged(box.inside, arrows) for box in boxes]
    places = {
        box.key: _place_of(box, inside, loops[box.key])
        for box, inside in zip(boxes, insides, strict=True)
    }
    layers = _layers(boxes, between)
    # Between two rows of boxes is one for labels.
    rows: list[list[_Place]] = [[] for _ in range(2 * max(layers.values()) + 1)]
    for key, place in places.items():
        rows[2 * layers[key]].append(place)
    routes = [_route(one, places, layers, rows) for one in between]
    _order(rows)
    _align(rows)
    bottom = _stack(rows)
    left = min(one.x - one.before for row in rows for one in row)
    for one in chain.from_iterable(rows):
        one.x -= left
    right = max(one.x + one.after for row in rows for one in row)
    return _Group(
        right,
        bottom,
        [(box, places[box.key], inside) for box, inside in zip(boxes, insides, strict=True)],
        routes,
        [
            (one, places[key], LINE * (number - (len(found) - 1) / 2))
            for key, found in loops.items()
            for number, one in enumerate(found)
        ],
    )


def _x_of(place: _Place) -> float:
    return place.x


def _place_of(box: Box, inside: _Group, loops: Sequence[Arrow]) -> _Place:
    """Return the place of a box with its size, and room for the arrows from it to itself."""
    lines = _lines_of(box)
    half = max(max(map(_width_of, lines), default=0.0), inside.width) / 2 + _PAD
    height = len(lines) * LINE + _PAD + (inside.height + _PAD if box.inside else 0)
    if box.shape != "box":
        half, height = _DOT / 2, _DOT
    after = half + _LOOP + max(_width_of(one.label) for one in loops) if loops else half
    return _Place(half, after, max(height, LINE * len(loops)))


def _lines_of(box: Box) -> list[str]:
    lines = [printable(line) for line in box.label.split("\n")] if box.label else []
    return [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..." for line in lines]


def _width_of(text: str) -> float:
    return len(printable(text)) * _CHARACTER


def _layers(boxes: Sequence[Box], arrows: Iterable[Arrow]) -> dict[str, int]:
    """Return the layer of each box: below all that lead to it, except by an arrow that closes a cycle.

    An end is below all other boxes.
    """
    targets: dict[str, list[str]] = {box.key: [] for box in boxes}
    for arrow in arrows:
        targets[arrow.source].append(arrow.target)
    reached = set(chain.from_iterable(targets.values()))
    # What no arrow reaches comes first, and then, for what only a cycle reaches, each box in turn.
    order = _in_order(sorted(targets, key=reached.__contains__), targets)
    layers = dict.fromkeys(order, 0)
    for key, position in order.items():
        for target in targets[key]:
            if order[target] > position:
                layers[target] = max(layers[target], layers[key] + 1)
    ends = {box.key for box in boxes if box.shape == "end" and not targets[box.key]}
    last = max((layer for key, layer in layers.items() if key not in ends), default=-1)
    return layers | dict.fromkeys(ends, last + 1)


def _in_order(keys: Iterable[str], targets: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the position of each key: before its targets, except for those that lead back to it.

    It is the order in which a search in depth leaves them, from the last to the first.
    """
    left: dict[str, None] = {}
    entered: set[str] = set()
    for first in keys:
        stack = [] if first in entered else [(first, iter(targets[first]))]
        while stack:
            key, rest = stack[-1]
            entered.add(key)
            following = next((one for one in rest if one not in entered), None)
            if following is not None:
                stack.append((following, iter(targets[following])))
            else:
                stack.pop()
                left[key] = None
    return {key: position for position, key in enumerate(reversed(left))}


def _route(
    arrow: Arrow,
    places: Mapping[str, _Place],
    layers: Mapping[str, int],
    rows: Sequence[list[_Place]],
) -> _Route:
    """Give an arrow a place in each row between its ends."""
    is_upwards = layers[arrow.source] > layers[arrow.target]
    ends = (arrow.target, arrow.source) if is_upwards else (arrow.source, arrow.target)
    first, last = (2 * layers[key] for key in ends)
    passed = [_Place(0, 0, 0, is_line=True) for _ in range(first + 1, last)]
    for row, place in zip(rows[first + 1 : last], passed, strict=True):
        row.append(place)
    whole = [places[ends[0]], *passed, places[ends[1]]]
    for above, below in pairwise(whole):
        above.below.append(below)
        below.above.append(above)
    route = _Route(arrow, whole, is_upwards)
    if arrow.label:
        route.label.after, route.label.height = _width_of(arrow.label) + 4, LINE
    return route


def _order(rows: list[list[_Place]]) -> None:
    """Order each row so that few arrows cross: by the average position of what is above, or below."""
    best, least = [list(row) for row in rows], _crossings(rows)
    for sweep in range(_sweeps_over(rows)):
        if not least:
            break
        is_down = sweep % 2 == 0
        for row in rows if is_down else reversed(rows):
            row.sort(key=lambda one: fmean(_xs_of(one.above if is_down else one.below) or [one.x]))
            _number(row)
        found = _crossings(rows)
        if found < least:
            best, least = [list(row) for row in rows], found
    rows[:] = best


def _sweeps_over(rows: Iterable[Sequence[_Place]]) -> int:
    return min(max(_MOST_VISITS // sum(map(len, rows)), _LEAST_SWEEPS), _MOST_SWEEPS)


def _number(row: Iterable[_Place]) -> None:
    for position, place in enumerate(row):
        place.x = position


def _xs_of(places: Iterable[_Place]) -> list[float]:
    return [one.x for one in places]


def _crossings(rows: Iterable[Iterable[_Place]]) -> int:
    """Return how many pairs of arrows cross between two rows. Number the places of each row."""
    for row in rows:
        _number(row)
    count = 0
    for row in rows:
        seen: list[float] = []
        for place in row:
            ends = sorted(_xs_of(place.below))
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def _align(rows: Sequence[Sequence[_Place]]) -> None:
    """Place all as near as possible to what they are connected with, in the order of their rows."""
    for row in rows:
        _number(row)
    for place in chain.from_iterable(rows):
        place.above.sort(key=_x_of)
        place.below.sort(key=_x_of)
    links = {place: [*_links_of(place)] for place in chain.from_iterable(rows)}
    for row in rows:
        _spread(row, [(0.0, 1.0)] * len(row))
    # Each pass makes the sum of the squares of all distances smaller, so it settles.
    for sweep in range(_sweeps_over(rows)):
        moved = 0.0
        for row in rows if sweep % 2 == 0 else reversed(rows):
            moved = max(moved, _spread(row, [_wanted(one, links[one]) for one in row]))
        if moved < _SETTLED:
            break


def _links_of(place: _Place) -> Iterator[tuple[_Place, float, float]]:
    """Yield each neighbour of a place, how far from it to the right it wants to be, and how much."""
    for other in chain(place.above, place.below):
        shift = _port(other, place) - _port(place, other)
        yield other, shift, _STRAIGHT if place.is_line and other.is_line else 1.0


def _port(place: _Place, other: _Place) -> float:
    """Return how far from its middle a place is met by the arrow that comes from a neighbour."""
    beside = place.below if other in place.below else place.above
    distance = min(_PORTS, 2 * place.before / (len(beside) + 1))
    return (beside.index(other) - (len(beside) - 1) / 2) * distance


def _wanted(place: _Place, links: Sequence[tuple[_Place, float, float]]) -> tuple[float, float]:
    """Return where a place wants to be, and how much."""
    if not links:
        return place.x, 1.0
    weight = sum(weight for _, _, weight in links)
    return sum((other.x + shift) * weight for other, shift, weight in links) / weight, weight


def _spread(row: Sequence[_Place], wanted: Sequence[tuple[float, float]]) -> float:
    """Place a row with the least squares of the distances to the wanted places: isotonic regression.

    Return how far one of them has moved.
    """
    offsets = [0.0]
    for left, right in pairwise(row):
        gap = _BESIDE / 2 if left.is_line and right.is_line else _BESIDE
        offsets.append(offsets[-1] + left.after + gap + right.before)
    # Those that would be too near are placed together, by the average of what they want.
    blocks: list[tuple[float, float, int]] = []
    for (want, weight), offset in zip(wanted, offsets, strict=False):
        mean, count = want - offset, 1
        while blocks and blocks[-1][0] > mean:
            earlier, more, before = blocks.pop()
            mean = (earlier * more + mean * weight) / (more + weight)
            weight, count = weight + more, count + before
        blocks.append((mean, weight, count))
    means = chain.from_iterable([mean] * count for mean, _, count in blocks)
    moved = 0.0
    for place, mean, offset in zip(row, means, offsets, strict=False):
        moved = max(moved, abs(mean + offset - place.x))
        place.x = mean + offset
    return moved


def _stack(rows: Iterable[Sequence[_Place]]) -> float:
    """Place rows below each other. Return the bottom of the last."""
    bottom = -_BETWEEN
    for row in rows:
        top = bottom + _BETWEEN
        bottom = top + max((one.height for one in row), default=0.0)
        for one in row:
            one.row_top, one.row_bottom = top, bottom
    return bottom


def _boxes_of(group: _Group, left: float, top: float) -> Iterator[PlacedBox]:
    for box, place, inside in group.boxes:
        width, lines = 2 * place.before, _lines_of(box)
        x, y = left + place.x - place.before, top + place.top
        yield PlacedBox(box, x, y, width, place.height, (*lines,))
        yield from _boxes_of(inside, *_corner(box, place, inside, left, top))


def _arrows_of(group: _Group, left: float, top: float) -> Iterator[PlacedArrow]:
    for route in group.routes:
        points = [(left + x, top + y) for x, y in _points_of(route)]
        x, y = left + route.label.x + 4, top + route.label.top + LINE * 0.75
        yield PlacedArrow(route.arrow, _path(points[:: -1 if route.is_upwards else 1]), x, y)
    for arrow, place, below in group.loops:
        x, y = left + place.x + place.before, top + place.top + place.height / 2
        high, low, far = y - place.height / 4, y + place.height / 4, x + _LOOP - 4
        path = f"M{x:.1f} {low:.1f}C{far:.1f} {low:.1f} {far:.1f} {high:.1f} {x:.1f} {high:.1f}"
        yield PlacedArrow(arrow, path, x + _LOOP, y + below + LINE / 4)
    for box, place, inside in group.boxes:
        yield from _arrows_of(inside, *_corner(box, place, inside, left, top))


def _corner(
    box: Box, place: _Place, inside: _Group, left: float, top: float
) -> tuple[float, float]:
    """Return the left and the top of what is in a box: in its middle, below its label."""
    below = len(_lines_of(box)) * LINE + _PAD
    return left + place.x - inside.width / 2, top + place.top + below


def _points_of(route: _Route) -> Iterator[tuple[float, float]]:
    """Yield where an arrow enters and leaves each row, from its upper end to its lower one."""
    upper, *passed, lower = route.places
    x = upper.x + _port(upper, passed[0])
    yield from ((x, upper.top + upper.height), (x, upper.row_bottom))
    for one in passed:
        yield from ((one.x, one.row_top), (one.x, one.row_bottom))
    x = lower.x + _port(lower, passed[-1])
    yield from ((x, lower.row_top), (x, lower.top))


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return a path in SVG: straight within a row, and curved from one to the next."""
    [(x, y), *rest] = points
    parts, straight_to = [f"M{x:.1f} {y:.1f}"], y
    for to_x, to_y in rest:
        if abs(to_x - x) < _LEAST_BEND:
            straight_to = to_y
            continue
        middle = (straight_to + to_y) / 2
        parts.append(
            f"V{straight_to:.1f}C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        )
        x, y, straight_to = to_x, to_y, to_y
    return "".join(parts) + (f"V{straight_to:.1f}" if straight_to != y else "")
