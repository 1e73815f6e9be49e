"""Which transition is taken from a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from effectflow.workflows.answers import answered
from effectflow.workflows.machine.attempt import BoundTransition
from effectflow.workflows.machine.errors import NoTransition
from effectflow.workflows.machine.states import State, StateSet

__all__ = ["Routes"]

_Ways: TypeAlias = tuple[BoundTransition, ...] | None
"""The transitions that leave a state; None if it is final."""


class Routes:
    """The transitions of a machine, found by the state that they leave, in their declared order.

    However many transitions there are, only those that leave a state are looked at.
    """

    def __init__(
        self, transitions: Sequence[BoundTransition], states: StateSet, final: StateSet
    ) -> None:
        self._transitions = transitions
        self._final = final
        self._of_state: dict[tuple[type[Any], Any], _Ways] = {
            atom: self._leaving(atom.value) for atom in states.atoms if isinstance(atom, State)
        }
        self._kinds = {kind for kind, _ in self._of_state}
        self._of_class: dict[type[Any], _Ways] = {}

    def is_final(self, state: object) -> bool:
        """Whether nothing leads on from a state, as it is final."""
        return self._ways(state) is None

    def choose(self, state: object) -> BoundTransition | NoTransition | None:
        """The first transition that leaves this state and whose guard agrees.

        NoTransition if there is none; None if the state is final.
        """
        ways = self._ways(state)
        if ways is None:
            return None
        for bound in ways:
            if _agrees(bound, state):
                return bound
        return NoTransition(state, [bound.transition.name for bound in ways])

    def _ways(self, state: object) -> _Ways:
        kind = type(state)
        if kind in self._kinds and (kind, state) in self._of_state:
            return self._of_state[kind, state]
        # A state that is not named by itself is told apart by its class alone.
        if kind not in self._of_class:
            self._of_class[kind] = self._leaving(state)
        return self._of_class[kind]

    def _leaving(self, state: object) -> _Ways:
        if state in self._final:
            return None
        return tuple(bound for bound in self._transitions if state in bound.transition.source)


def _agrees(bound: BoundTransition, state: object) -> bool:
    guard = bound.transition.guard
    if guard is None:
        return True
    whose = f"the guard of transition {bound.transition.name!r}"
    try:
        answer = guard(state)
    except Exception as error:
        error.add_note(f"in {whose}")
        raise
    return bool(answered(answer, whose))
