"""A state machine, and where one machine stands, as a drawing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from effectflow.workflows.drawing import Arrow, Box, Drawing, Mark
from effectflow.workflows.machine.chart import Arrow as Way
from effectflow.workflows.machine.chart import Chart
from effectflow.workflows.machine.machine import Machine
from effectflow.workflows.machine.states import Atom, name_of

__all__ = ["picture"]

_START, _END = "start", "end"


def picture(name: str, chart: Chart, machine: Machine[Any] | None = None) -> Drawing:
    """The drawing of a definition; with a machine, where that was, and where it stands. Pure."""
    keys = {place: f"state {number}" for number, place in enumerate(chart.places)}
    marks = {} if machine is None else _marks(chart, machine)
    return Drawing(
        name,
        (
            Box(_START, shape="start"),
            *(Box(keys[place], name_of(place), mark=marks.get(place, "plain")) for place in keys),
            Box(_END, shape="end"),
        ),
        tuple(_arrows(chart, keys)),
    )


def _marks(chart: Chart, machine: Machine[Any]) -> dict[Atom, Mark]:
    been = [machine.initial, *(entry.target for entry in machine.history)]
    visited: dict[Atom, Mark] = {
        place: "visited" for state in been for place in chart.places_with(state)
    }
    return {**visited, **dict.fromkeys(chart.places_with(machine.current), "current")}


def _arrows(chart: Chart, keys: dict[Atom, str]) -> Iterator[Arrow]:
    for place in chart.places_with(chart.initial.value):
        yield Arrow(_START, keys[place])
    for way in chart.drawn:
        yield Arrow(keys[way.source], keys[way.target], _label(way), is_dashed=way.is_abort)
    for place in chart.final_places:
        yield Arrow(keys[place], _END)


def _label(way: Way) -> str:
    """The transition's name, what it depends on, and whether this is how it aborts."""
    guard = way.transition.guard
    name = getattr(guard, "__name__", "<lambda>")
    condition = f" if {'guard' if name == '<lambda>' else name}" if guard is not None else ""
    return f"{way.transition.name}{condition}{' (abort)' if way.is_abort else ''}"
