"""Plain data, as people type it, to the state that a machine is to begin in."""

from __future__ import annotations

from typing import Any, cast

from effectflow.checkpoint.values import KnownTypes, MalformedValue, from_tree
from effectflow.workflows.machine.chart import Chart
from effectflow.workflows.machine.states import State, name_of
from effectflow.workflows.structuring import structure_as

__all__ = ["structure_state"]


def structure_state(machine: str, chart: Chart, types: KnownTypes, data: object) -> Any:
    """The state that data means: one of the class of the initial state, or else one that is left.

    States of several classes may look the same as plain data; the first class that fits is taken, in the
    order in which transitions are tried. Data in the form in which states are saved, such as
    `{"$object": ["Draft", {...}]}`, names the class itself.

    Raises ValueError, with what does not fit each class.
    """
    if data is None:
        return None
    if _is_tagged(data):
        try:
            return _checked(from_tree(cast(Any, data), types=types), machine, chart)
        except MalformedValue as error:
            raise ValueError(f"the input does not fit a state of {machine!r}: {error}") from error
    reasons: list[str] = []
    for kind in _kinds(chart):
        try:
            return _checked(structure_as(kind, data), machine, chart)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError("; ".join(dict.fromkeys(reasons)))


def _is_tagged(data: object) -> bool:
    """Whether data has the form of a saved value that is not plain."""
    keys = list(cast("dict[str, object]", data)) if isinstance(data, dict) else []
    return len(keys) == 1 and keys[0].startswith("$")


def _kinds(chart: Chart) -> list[type[Any]]:
    """The classes of the initial state and of those that transitions leave, in that order."""
    left = [atom for transition in chart.transitions for atom in transition.source.atoms]
    kinds = [atom.kind if isinstance(atom, State) else atom for atom in (chart.initial, *left)]
    return list(dict.fromkeys(kinds))


def _checked(state: object, machine: str, chart: Chart) -> object:
    # The input of a run that is a dict is a whole machine, so none stands for a state.
    if isinstance(state, dict) or state not in chart.declared:
        raise ValueError(f"{name_of(cast(object, state))} is no state of {machine!r}")
    return state
