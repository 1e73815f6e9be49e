"""Find the transition to take from a state, ready to run: with its step, classes and retry policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args, get_origin

from effectflow.checkpoint.step import StepDefinition
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import RetryPolicy
from effectflow.effects.signatures import effect_types
from effectflow.workflows.checks import pure_result
from effectflow.workflows.machine._attempt import BoundTransition, TransitionExhausted
from effectflow.workflows.machine._reachability import Chart
from effectflow.workflows.machine._states import State, name_of
from effectflow.workflows.machine._transition import Abort, Moved


class NoTransition(Exception):
    """The machine is in a state that is not final, and no transition can be taken.

    Attributes:
        state: the current state.
        refused: the transitions that leave this state, whose guards all returned False.
    """

    def __init__(self, state: object, refused: Sequence[str]) -> None:
        self.state = state
        self.refused = tuple(refused)
        guards = ", ".join(repr(name) for name in self.refused)
        reason = f"the guards of {guards} returned False" if guards else "none is declared"
        super().__init__(f"no transition can be taken from state {name_of(state)}: {reason}")


@dataclass(frozen=True, slots=True)
class SavedTypes:
    """The classes that saved values may be made of.

    Attributes:
        states: the classes of states.
        outcomes: those of states, and of the errors of a run.
        steps: for each transition, those of states, and of the errors of an attempt.
    """

    states: KnownTypes
    outcomes: KnownTypes
    steps: tuple[KnownTypes, ...]


def saved_types(chart: Chart) -> SavedTypes:
    """Return the classes that a machine may save.

    Raises ValueError if two different classes have the same name.
    """
    annotated = [
        (None, None) if transition.action is None else effect_types(transition.action)
        for transition in chart.transitions
    ]
    atoms = [atom.kind if isinstance(atom, State) else atom for atom in chart.declared.atoms]
    states = KnownTypes.of(
        *atoms, *(part for output, _ in annotated for part in _states_in(output))
    )
    # Expanded once, not for each transition: a machine may have hundreds of both.
    classes = [*states.classes.values(), *states.errors.values()]
    steps = tuple(KnownTypes.of(*classes, error, TransitionExhausted) for _, error in annotated)
    known = KnownTypes.of(*classes, NoTransition)
    # Errors are keyed by their full names, so that two of the same name remain different.
    failures = {name: kind for types in steps for name, kind in types.errors.items()}
    outcomes = replace(known, errors={**known.errors, **failures})
    return SavedTypes(states, outcomes, steps)


def _states_in(outcome: object) -> Iterator[object]:
    """Yield the annotations of states in that of an outcome, such as `Moved[Order] | Retry`."""
    if get_origin(outcome) in (Moved, Abort):
        yield from get_args(outcome)
        return
    for part in get_args(outcome):
        yield from _states_in(part)


_Candidates: TypeAlias = tuple[BoundTransition, ...] | None
"""The transitions that leave a state, in their declared order; None if the state is final."""


class TransitionTable:
    """The transitions of a machine by the state that they leave, so that no others are considered."""

    def __init__(self, chart: Chart, types: SavedTypes, retry: RetryPolicy) -> None:
        self.transitions = tuple(
            BoundTransition(
                transition,
                StepDefinition(transition.name, step_types, at_most_once=transition.at_most_once),
                transition.retry or retry,
                chart.final if transition.abort_to is None else transition.abort_to,
            )
            for transition, step_types in zip(chart.transitions, types.steps, strict=True)
        )
        self._final = chart.final
        self._of_state: dict[tuple[type[Any], Any], _Candidates] = {
            atom: self._leaving(atom.value)
            for atom in chart.declared.atoms
            if isinstance(atom, State)
        }
        self._kinds = {kind for kind, _ in self._of_state}
        self._of_class: dict[type[Any], _Candidates] = {}

    def is_final(self, state: object) -> bool:
        """Return whether the state is final."""
        return self._candidates(state) is None

    def choose(self, state: object) -> BoundTransition | NoTransition | None:
        """Return the first transition that leaves this state and whose guard allows it.

        Return NoTransition if there is none, and None if the state is final.
        """
        candidates = self._candidates(state)
        if candidates is None:
            return None
        for bound in candidates:
            if _is_allowed(bound, state):
                return bound
        return NoTransition(state, [bound.transition.name for bound in candidates])

    def _candidates(self, state: object) -> _Candidates:
        kind = type(state)
        if kind in self._kinds and (kind, state) in self._of_state:
            return self._of_state[kind, state]
        # A state that no definition names singly is distinguished by its class alone.
        if kind not in self._of_class:
            self._of_class[kind] = self._leaving(state)
        return self._of_class[kind]

    def _leaving(self, state: object) -> _Candidates:
        if state in self._final:
            return None
        return tuple(bound for bound in self.transitions if state in bound.transition.source)


def _is_allowed(bound: BoundTransition, state: object) -> bool:
    guard = bound.transition.guard
    if guard is None:
        return True
    name = f"the guard of transition {bound.transition.name!r}"
    try:
        result = guard(state)
    except Exception as error:
        error.add_note(f"in {name}")
        raise
    return bool(pure_result(result, name))
