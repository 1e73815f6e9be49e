"""What the caller of `start` attached to a run, for whatever runs in it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Never

from effectflow.checkpoint.live_run import LiveRun
from effectflow.effects import Effect
from effectflow.effects.nodes import Pure, Suspend
from effectflow.effects.scope import Scope

__all__ = ["context_of", "run_context"]

_NO_CONTEXT: Mapping[str, object] = MappingProxyType({})


def run_context() -> Effect[object, Never, Mapping[str, object]]:
    """Yields the `context` that the run around it was started with: tenant, user, trace ids.

    It is saved with the run, so a resume has it without being told again. It is the same in every step
    and between steps, and cannot be changed. Outside a run it is empty.

    Example:
        >>> from effectflow import run_context
        >>> run_context().map(dict).run_sync(None)
        <Success: {}>
    """
    return _RUN_CONTEXT


def context_of(scope: Scope) -> Mapping[str, object]:
    """The context of the run that this scope is part of; empty if it is part of none."""
    return scope.recorder.context if isinstance(scope.recorder, LiveRun) else _NO_CONTEXT


_RUN_CONTEXT = Suspend(lambda scope: Pure(context_of(scope)), ("run_context",))
