"""Make the steps of an effect durable, also inside a step."""

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
    """Return the effect as a flow that can be resumed in the middle, even inside a step.

    A step runs again as a whole, so operators inside it record nothing. In this flow they do: a resume
    skips the steps of this effect, so the decisions between them must be the same again.

    Parameters:
        effect: the effect of the flow.
        shown: the call that created it, for `repr`: a name and its arguments.
    """

    def reach(scope: Scope) -> Effect[Env, E, A]:
        if scope.step is None:
            return effect
        inside = scope.copy()
        inside.step = None
        scope.flow.record_decisions()
        return InScope(effect, inside)

    return Suspend(reach, shown)
