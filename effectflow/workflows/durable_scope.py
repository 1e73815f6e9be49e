"""Make an effect a flow of its own steps, wherever it is run."""

from __future__ import annotations

from typing import TypeVar

from effectflow.effects import Effect
from effectflow.effects.nodes import InScope, Suspend
from effectflow.effects.scope import Scope

__all__ = ["durable_scope"]

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")


def durable_scope(effect: Effect[Env, E, A], shown: tuple[object, ...]) -> Effect[Env, E, A]:
    """Return the effect as a flow that may be resumed in the middle, even if it is within a step.

    A step is run again as a whole, so the operators within it record nothing. Here they do: the steps
    of this effect are skipped by a resume, and so must meet again what was decided between them.

    Parameters:
        effect: what the flow does.
        shown: what a user called to get it, for `repr`: a name and its arguments.
    """

    def reach(scope: Scope) -> Effect[Env, E, A]:
        if scope.step is None:
            return effect
        inside = scope.copy()
        inside.step = None
        scope.flow.record_decisions()
        return InScope(effect, inside)

    return Suspend(reach, shown)
