"""In a picture, boxes, arrows and labels keep clear of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import TypeAlias

from hypothesis import given, strategies as st

from effectflow.builders.diagrams import Arrow, Box, Diagram
from effectflow.builders.layout import Layout, PlacedArrow, PlacedBox, layout_of

Point: TypeAlias = tuple[float, float]

KEYS = "abcdefgh"
keys = st.sampled_from(KEYS)
labels = st.sampled_from(("", "go", "approve if it is complete"))
arrows = st.builds(Arrow, keys, keys, labels)
inside = st.just((Box("x", "x"), Box("y", "y")))
boxes = st.tuples(
    *(
        st.builds(Box, st.just(key), st.sampled_from((key, f"{key}\ntwice")), inside=st.just(()))
        for key in KEYS[:-1]
    ),
    st.builds(Box, st.just(KEYS[-1]), inside=inside),
)
diagrams = st.builds(Diagram, boxes, st.lists(arrows, max_size=16).map(tuple))


def points_of(path: str) -> Iterator[Point]:
    """Yield points along a path, near enough to each other to hit every box that it crosses."""
    x = y = 0.0
    for command, text in re.findall(r"([MVC])([^MVC]*)", path):
        numbers = [*map(float, text.split())]
        if command == "C":
            x1, y1, x2, y2, x3, y3 = numbers
            for part in (number / 20 for number in range(21)):
                rest = 1 - part
                a, b, c, d = rest**3, 3 * rest**2 * part, 3 * rest * part**2, part**3
                yield a * x + b * x1 + c * x2 + d * x3, a * y + b * y1 + c * y2 + d * y3
            x, y = x3, y3
        elif command == "V":
            to = numbers[0]
            yield from ((x, y + (to - y) * number / 20) for number in range(21))
            y = to
        else:
            x, y = numbers
    yield x, y


def is_in(point: Point, box: PlacedBox) -> bool:
    # A point on the edge is not in the box.
    return (
        box.left + 1 < point[0] < box.left + box.width - 1
        and box.top + 1 < point[1] < box.top + box.height - 1
    )


def rectangle(one: PlacedBox | PlacedArrow) -> tuple[float, float, float, float]:
    """Return the left, the top, the right and the bottom of a box, or of the label of an arrow."""
    if isinstance(one, PlacedBox):
        return one.left, one.top, one.left + one.width, one.top + one.height
    return one.left, one.top - 12, one.left + 7 * len(one.arrow.label), one.top + 3


def overlap(one: PlacedBox | PlacedArrow, other: PlacedBox | PlacedArrow) -> bool:
    left, top, right, bottom = rectangle(one)
    other_left, other_top, other_right, other_bottom = rectangle(other)
    return left < other_right and other_left < right and top < other_bottom and other_top < bottom


def outer_boxes(drawn: Layout) -> list[PlacedBox]:
    return [one for one in drawn.boxes if one.box.key in KEYS]


@given(diagrams)
def test_no_arrow_crosses_a_box(diagram: Diagram) -> None:
    drawn = layout_of(diagram)

    for arrow in drawn.arrows:
        for point in points_of(arrow.path):
            assert not any(is_in(point, box) for box in outer_boxes(drawn)), arrow


@given(diagrams)
def test_an_arrow_begins_and_ends_at_its_boxes(diagram: Diagram) -> None:
    drawn = layout_of(diagram)

    places = {one.box.key: one for one in drawn.boxes}
    for one in drawn.arrows:
        first, *_, last = points_of(one.path)
        for (x, y), key in ((first, one.arrow.source), (last, one.arrow.target)):
            left, top, right, bottom = rectangle(places[key])
            assert left - 1 <= x <= right + 1
            assert top - 1 <= y <= bottom + 1


@given(diagrams)
def test_boxes_and_labels_cover_nothing_and_are_in_the_picture(diagram: Diagram) -> None:
    drawn = layout_of(diagram)

    shown = [*outer_boxes(drawn), *(one for one in drawn.arrows if one.arrow.label)]
    for one, other in combinations(shown, 2):
        assert not overlap(one, other)
    for one in shown:
        left, top, right, bottom = rectangle(one)
        assert left >= 0
        assert top >= 0
        assert right <= drawn.width
        assert bottom <= drawn.height


@given(diagrams)
def test_without_cycles_all_arrows_lead_down(diagram: Diagram) -> None:
    arrows = tuple(one for one in diagram.arrows if one.source < one.target)

    drawn = layout_of(Diagram(diagram.boxes, arrows))

    tops = {one.box.key: one.top for one in drawn.boxes}
    assert all(tops[one.source] < tops[one.target] for one in arrows)


def test_a_chain_is_a_straight_line() -> None:
    chain = [
        Box("s", shape="start"),
        Box("a", "a"),
        Box("b", "a longer one"),
        Box("e", shape="end"),
    ]

    drawn = layout_of(Diagram((*chain,), tuple(Arrow(a.key, b.key) for a, b in pairwise(chain))))

    assert len({one.middle for one in drawn.boxes}) == 1
    assert not any("C" in one.path for one in drawn.arrows)


def test_nested_boxes_are_in_the_box_around_them() -> None:
    nested = (Box("p/x", "x"), Box("p/y", "y", inside=(Box("p/y/z", "z"),)))

    drawn = layout_of(Diagram((Box("p", "p", inside=nested),), (Arrow("p/x", "p/y", "then"),)))

    outer, x, y, z = map(rectangle, drawn.boxes)
    for around, within in ((outer, x), (outer, y), (y, z)):
        assert around[0] < within[0] < within[2] < around[2]
        assert around[1] < within[1] < within[3] < around[3]
