"""What the caller of `start` attached to a run, for whatever runs in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Never

from effectflow.effects import Effect
from effectflow.effects.nodes import Pure, Suspend

__all__ = ["run_context"]


def run_context() -> Effect[object, Never, Mapping[str, object]]:
    """Yields the `context` that the run around it was started with: tenant, user, trace ids.

    It is saved with the run, so a resume has it without being told again. It is the same in every step
    and between steps, also where an executor runs them, and cannot be changed. Outside a run it is empty.

    Example:
        >>> from effectflow import run_context
        >>> run_context().map(dict).run_sync(None)
        <Success: {}>
    """
    return _RUN_CONTEXT


_RUN_CONTEXT = Suspend(lambda scope: Pure(scope.context), ("run_context",))
