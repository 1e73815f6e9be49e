"""Effects that may take only so long."""

from __future__ import annotations

from typing import Any

import anyio
from returns.maybe import Maybe

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.errors import TimedOut
from effectflow.effects.interpreter import interpret
from effectflow.effects.scope import Operator, Scope

__all__ = ["timeout"]


def timeout(source: Effect[Any, Any, Any], seconds: float) -> Effect[Any, Any, Any]:
    """Cancels an effect after so many seconds; see `Effect.timeout`."""
    if not seconds >= 0:
        raise ValueError(f"a timeout must be 0 seconds or more, not {seconds}")

    async def perform(env: Any, scope: Scope) -> Any:
        recorder = scope.decisions
        path = scope.next_path("timeout")
        # A resumed run that goes by here again must not find in time what once was not.
        if recorder is not None and recorder.recall(path) is not Maybe.empty:
            return nodes.Failed(TimedOut(seconds))
        operator = Operator(lambda: limit.cancel_called)
        try:
            with scope.clock.move_on_after(seconds) as limit:
                return await interpret(source, env, scope.within(path).under(operator))
        except anyio.get_cancelled_exc_class():
            if recorder is not None and operator.has_ended_flows:
                # The run is stopped while what was in time no more was ending. Its finalizers have run.
                recorder.record(path, True)
            raise
        if recorder is not None:
            operator.record_failure(recorder, path, path, True)
        return nodes.Failed(TimedOut(seconds))

    return nodes.Perform(perform, ("timeout", source, seconds))
