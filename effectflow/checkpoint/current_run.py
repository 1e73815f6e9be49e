"""What the code of a run asks about the run, and tells it: its context, its version, when to save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Never

from effectflow.checkpoint.step import NAME
from effectflow.effects import Effect, nodes
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.scope import Scope


def run_context() -> Effect[object, Never, Mapping[str, object]]:
    """Yield the `context` with which the run was started: tenant, user, trace ids.

    It is saved with the run, so a resume has it as well. It is the same in steps and between them, also
    in executors, and cannot be changed. Outside a run it is empty.

    Example:
        >>> from effectflow.checkpoint import run_context
        >>> run_context().map(dict).run_sync(None)
        <Success: {}>
    """
    return nodes.Suspend(lambda _, scope: nodes.Pure(scope.context), ("run_context",))


def save_now(reason: str = "save_now()") -> Effect[object, Never, None]:
    """Make everything durable that the current run has recorded so far, under any `CheckpointPolicy`.

    Without a run, or in an executor, it does nothing. It is not a step: a resume that replays it saves
    nothing. If the store rejects the entries, the run ends or continues as `on_save_error` says.

    Parameters:
        reason: why, for observers: `CheckpointSaved.reason`.

    Example:
        >>> from effectflow.checkpoint import save_now
        >>> save_now("the paper is in the printer").run_sync(None)
        <Success: None>
    """

    async def save(_env: object, scope: Scope) -> None:
        await scope.fiber.save_now(reason)

    return nodes.Perform(save, ("save_now", reason))


def started_version() -> Effect[object, Never, str | None]:
    """Yield the version of the workflow with which the run was started; None outside runs.

    Code with a new step branches on it, so that runs of the earlier version can continue.

    Example:
        >>> from effectflow.checkpoint import started_version
        >>> started_version().run_sync(None)
        <Success: None>
    """
    return nodes.Suspend(
        lambda _, scope: nodes.Pure(scope.fiber.started_version), ("started_version",)
    )


def patched(name: str) -> Effect[object, Never, bool]:
    """Yield whether this run takes new code here: False if an earlier life has gone on with the old code.

    It yields True in new runs, and in old ones that have recorded nothing after this place. False is for
    replays of what the code before has recorded. The answer is recorded, so all later lives get the same.
    Outside runs it is True.

    Each place has an answer of its own, also in each round of a loop. If the new code is in several
    places that belong together, ask once, at the first one, and keep the answer in a variable.

    To remove it: once no unfinished run takes the old code (`effectflow check` with code that only has
    the new branch says so), keep the new branch, and delete the old one and the call. Runs that have
    recorded an answer ignore it.

    Parameters:
        name: what the change is, for the journal. Give each change another name.

    Raises ValueError for a name that cannot name a step.

    Example:
        >>> from effectflow import Do, do, patched, pure
        >>> @do
        ... def price(amount: int) -> Do[object, str, int]:
        ...     if (yield from patched("vat")):
        ...         amount = yield from pure(amount * 119 // 100)
        ...     return amount
        >>> price(100).run_sync(None)
        <Success: 119>
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a change: see the names of steps")
    path = f"patched:{name}"

    def ask(_env: object, scope: Scope) -> AnyEffect:
        fiber = scope.fiber
        # As long as it has led to nothing, a worker with the old code may go on from here.
        answer = fiber.value(path, bool, lambda: fiber.begins_anew, is_tentative=True)
        return nodes.Pure(answer)

    return nodes.Suspend(ask, ("patched", name))
