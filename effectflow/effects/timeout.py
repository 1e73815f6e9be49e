"""Timeouts of effects."""

from __future__ import annotations

from typing import Any

import anyio

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.errors import TimedOut
from effectflow.effects.event_loop import cancel_natively
from effectflow.effects.operators import Operator
from effectflow.effects.scope import Scope

__all__ = ["timeout"]


def timeout(source: Effect[Any, Any, Any], seconds: float) -> Effect[Any, Any, Any]:
    """Cancel an effect after a number of seconds; see `Effect.timeout`."""
    if not seconds >= 0:
        raise ValueError(f"a timeout must be 0 seconds or more, not {seconds}")

    async def perform(env: Any, scope: Scope) -> Any:
        operator = Operator.begin(scope, "timeout")
        inside = operator.branch(None)
        decision = operator.decision
        left = None if decision is not None else operator.branches.deadline(seconds)
        try:
            if decision is not None:
                if not decision.has_ended:
                    await operator.run_cancelled(source, env, inside)
            elif left is None:
                return await operator.run_branch(source, env, inside)
            else:
                with scope.clock.move_on_after(left) as operator.limit:
                    outcome = await operator.run_branch(source, env, inside)
                    # What comes after the decision is discarded.
                    if not operator.is_decided:
                        return outcome
                if scope.flow.is_stopping:
                    # The run is being stopped as well, which the expired limit hides.
                    await anyio.lowlevel.checkpoint_if_cancelled()
                    await cancel_natively()
                operator.expire()
        finally:
            operator.end()
        return nodes.Failed(TimedOut(seconds))

    return nodes.Perform(perform, ("timeout", source, seconds))
