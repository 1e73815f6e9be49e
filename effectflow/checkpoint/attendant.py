"""What a worker does for each run that it drives: suspend it when it rests, and tell it of messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from effectflow.checkpoint.changes import watching
from effectflow.effects.errors import Halt

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run

_GRACE = 0.02
"""The seconds that all flows must rest before a run is suspended: a branch may be about to begin. Also
those after which a run whose flows are busy looks for messages."""


class Wakeup:
    """An event that can be waited for again and again."""

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
    """Asks the runs of a worker to begin nothing more. Each stops when its steps in flight have ended."""

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
        """Do not wake this any more."""
        self._waiting.discard(wakeup)


@asynccontextmanager
async def attended(run: Run, suspend_after: float) -> AsyncGenerator[None]:
    """Suspend a run once all its flows wait for more than this many seconds, or its worker drains.

    Until then, read the messages that arrive for it. The block looks for those that have arrived before,
    and runs the body.
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
        """Tell the flows of new messages, even if a flow has read them. Return whether any came."""
        nonlocal told
        await run.look_for_messages()
        if run.mailbox.seen == told:
            return False
        told = run.mailbox.seen
        activity.look_again()
        # They may not wait for any of these, and then nothing else lets it think of a suspension again.
        woken.set()
        return True

    async def attend() -> None:
        nonlocal has_changed
        try:
            with attending:
                while True:
                    if has_changed:
                        if activity.busy:
                            # A run changes with its own entries most of the time, and may end soon.
                            await anyio.sleep(_GRACE)
                        has_changed = False
                        await look()
                    elif activity.busy == 0 and await _may_suspend(run, suspend_after, look):
                        run.suspend()
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


async def _may_suspend(run: Run, suspend_after: float, look: Callable[[], Awaitable[bool]]) -> bool:
    """Return whether all flows rest, and will do so for long, knowing all messages so far."""
    activity, seen = run.activity, run.activity.changes
    await anyio.sleep(_GRACE)
    if await look():
        return False
    if activity.busy or activity.changes != seen:
        return False
    return run.is_draining or activity.next_at - run.now() > suspend_after
