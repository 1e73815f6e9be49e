"""Make an effect a flow of its own steps, wherever it is run."""

from __future__ import annotations

from typing import TypeVar

from effectflow.effects import Effect
from effectflow.effects.nodes import InScope, Suspend
from effectflow.effects.scope import Scope

__all__ = ["flow"]

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")


def flow(effect: Effect[Env, E, A], shown: tuple[object, ...]) -> Effect[Env, E, A]:
    """The effect as a flow that may be resumed in the middle, even if it is within a step.

    A step is run again as a whole, so the operators within it record nothing. Here they do: the steps
    of this effect are skipped by a resume, and so must meet again what was decided between them.

    Parameters:
        effect: what the flow does.
        shown: what a user called to get it, for `repr`: a name and its arguments.
    """

    def reach(scope: Scope) -> Effect[Env, E, A]:
        return effect if scope.step is None else InScope(effect, scope.between_steps())

    return Suspend(reach, shown)
