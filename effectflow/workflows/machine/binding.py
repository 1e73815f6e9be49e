"""Transitions made ready for one machine: the step that each attempt is, and what it may save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args, get_origin

from effectflow.checkpoint.durable_step import StepDefinition
from effectflow.checkpoint.step import effect_types
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import RetryPolicy
from effectflow.workflows.machine.attempt import BoundTransition
from effectflow.workflows.machine.chart import Chart
from effectflow.workflows.machine.errors import NoTransition, TransitionExhausted
from effectflow.workflows.machine.outcomes import Abort, Moved
from effectflow.workflows.machine.states import State
from effectflow.workflows.machine.transition import Transition

__all__ = ["SavedTypes", "bind", "saved_types"]

AnyTransition: TypeAlias = Transition[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class SavedTypes:
    """The classes that what is saved may be made of.

    Attributes:
        states: those of states.
        outcomes: those of states, and of what a run may fail with.
        steps: those of states, and of what an attempt may fail with, for each transition.
    """

    states: KnownTypes
    outcomes: KnownTypes
    steps: tuple[KnownTypes, ...]


def saved_types(chart: Chart) -> SavedTypes:
    """What a machine may save. Raises ValueError if two different classes have the same name."""
    annotated = [_annotations(transition) for transition in chart.transitions]
    outputs, errors = [output for output, _ in annotated], [error for _, error in annotated]
    atoms = [atom.kind if isinstance(atom, State) else atom for atom in chart.declared.atoms]
    states = KnownTypes.of(*atoms, *(part for output in outputs for part in _states_in(output)))
    # Looked into once, and not for each transition: a machine may have hundreds of both.
    classes = [*states.classes.values(), *states.errors.values()]
    steps = tuple(KnownTypes.of(*classes, error, TransitionExhausted) for error in errors)
    known = KnownTypes.of(*classes, NoTransition)
    # By their full names, unlike the classes of states: two of one name are not taken for one another.
    failures = {name: kind for types in steps for name, kind in types.errors.items()}
    outcomes = replace(known, errors={**known.errors, **failures})
    return SavedTypes(states, outcomes, steps)


def bind(chart: Chart, types: SavedTypes, retry: RetryPolicy) -> Sequence[BoundTransition]:
    """The transitions of a chart; this policy is for those that have none of their own."""
    return [
        BoundTransition(
            transition,
            StepDefinition(transition.name, step_types, at_most_once=transition.at_most_once),
            transition.retry or retry,
            chart.final if transition.abort_to is None else transition.abort_to,
        )
        for transition, step_types in zip(chart.transitions, types.steps, strict=True)
    ]


def _annotations(transition: AnyTransition) -> tuple[object, object]:
    """Those of what an action gives, and of what it fails with."""
    return (None, None) if transition.action is None else effect_types(transition.action)


def _states_in(outcome: object) -> Iterator[object]:
    """The annotations of states in that of an outcome, such as `Moved[Order] | Retry`."""
    if get_origin(outcome) in (Moved, Abort):
        yield from get_args(outcome)
        return
    for part in get_args(outcome):
        yield from _states_in(part)
