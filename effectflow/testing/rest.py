"""The rest of an event loop: all of its tasks wait."""

from __future__ import annotations

import sys
from collections.abc import Sized

import anyio.lowlevel

from effectflow.effects.event_loop import running_backend

_ROUNDS = 50
"""The most rounds of the event loop that a task may take until it waits again."""


async def let_others_wait() -> None:
    """Let the other tasks run until all of them wait, for at most `_ROUNDS` rounds of the loop."""
    if running_backend() == "trio":
        await _let_others_wait_on_trio()
        return
    import asyncio

    # Other implementations of the loop may not show which callbacks are ready to run.
    ready: Sized | None = getattr(asyncio.get_running_loop(), "_ready", None)
    for _ in range(_ROUNDS):
        await anyio.lowlevel.checkpoint()
        if ready is not None and not ready:
            return


async def _let_others_wait_on_trio() -> None:
    # The running program has imported it already; this package does not depend on it.
    trio = sys.modules["trio"].lowlevel
    steps = _Steps()
    trio.add_instrument(steps)
    try:
        quiet = 0
        for _ in range(_ROUNDS):
            before = steps.taken
            await anyio.lowlevel.checkpoint()
            # This task itself takes one step. Trio runs the tasks of a round in any order, so after one
            # quiet round a task may be left that another one woke before.
            quiet = quiet + 1 if steps.taken == before + 1 else 0
            if quiet == 2:
                return
    finally:
        trio.remove_instrument(steps)


class _Steps:
    """An instrument of trio that counts the steps of all tasks."""

    def __init__(self) -> None:
        self.taken = 0

    def before_task_step(self, task: object) -> None:
        self.taken += 1
