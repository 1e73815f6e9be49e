"""Attend to a run that a worker drives: suspend it when it rests, and pass messages to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from effectflow.checkpoint.changes import watching
from effectflow.checkpoint.stopping import Suspension
from effectflow.effects.errors import Halt

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run

_GRACE = 0.02
"""The seconds that all flows must rest before a run is suspended: a branch may be about to begin. Also
those after which a run whose flows are busy looks for messages."""


class Wakeup:
    """An event that can be awaited repeatedly."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """End the wait, or the next one."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until `set` was called since the last wait."""
        await self._event.wait()
        self._event = anyio.Event()


class Drain:
    """Asks the runs of a worker to begin nothing more. Each stops once its running steps have ended."""

    def __init__(self) -> None:
        self.has_begun = False
        self._waiting: set[Wakeup] = set()

    def begin(self) -> None:
        """Ask all runs to stop."""
        self.has_begun = True
        for wakeup in self._waiting:
            wakeup.set()

    def notify(self, wakeup: Wakeup) -> None:
        """Wake this when the drain begins."""
        self._waiting.add(wakeup)

    def forget(self, wakeup: Wakeup) -> None:
        """Stop waking this when the drain begins."""
        self._waiting.discard(wakeup)


@asynccontextmanager
async def attended(run: Run, suspend_after: float) -> AsyncGenerator[None]:
    """Suspend a run once all its flows wait for more than this many seconds, or its worker drains.

    Until then, read the messages that arrive for it. The block reads earlier messages and runs the body.
    """
    activity, drain, woken = run.activity, run.drain, Wakeup()
    assert drain is not None
    has_changed = False
    told = 0
    attending = anyio.CancelScope()

    def change() -> None:
        nonlocal has_changed
        has_changed = True
        woken.set()

    async def look() -> bool:
        """Tell the flows about new messages, even if one has read them. Return whether there are any."""
        nonlocal told
        await run.look_for_messages()
        if run.mailbox.seen == told:
            return False
        told = run.mailbox.seen
        activity.look_again()
        # If no flow waits for any of these, nothing else would start another check for a suspension.
        woken.set()
        return True

    async def attend() -> None:
        nonlocal has_changed
        try:
            with attending:
                while True:
                    if has_changed:
                        if activity.busy:
                            # Most changes of a run are its own entries, and it may end soon.
                            await anyio.sleep(_GRACE)
                        has_changed = False
                        await look()
                    elif activity.busy == 0 and await _may_suspend(run, drain, suspend_after, look):
                        waits = Suspension(activity.next_at, activity.waits_for, run.mailbox.seen)
                        run.stopping.suspend(waits)
                        return
                    elif activity.busy > 0 or not has_changed:
                        await woken.wait()
        except Halt:
            # The store cannot be read. The flows of the run end, and so does the run.
            run.tasks.cancel_scope.cancel()

    activity.on_rest = woken.set
    drain.notify(woken)
    try:
        async with watching(run.checkpoints.store, run.run_id, change):
            run.tasks.start_soon(attend)
            yield
    finally:
        attending.cancel()
        activity.on_rest = None
        drain.forget(woken)


async def _may_suspend(
    run: Run, drain: Drain, suspend_after: float, look: Callable[[], Awaitable[bool]]
) -> bool:
    """Return whether all flows have read the messages so far, and will rest for long."""
    activity, seen = run.activity, run.activity.changes
    await anyio.sleep(_GRACE)
    if await look():
        return False
    if activity.busy or activity.changes != seen:
        return False
    return drain.has_begun or activity.next_at - run.now() > suspend_after
