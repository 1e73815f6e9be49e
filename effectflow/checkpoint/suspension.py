"""Suspend a run once all of its flows rest.

A flow rests while it waits for a time, a message or another run, and the journal records for what. A
flow with branches does not count; only its branches do. So the number of busy flows is 1 at first. A
nested run shares the count of its outer run.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from effectflow.checkpoint.changes import Wakeup, watching
from effectflow.checkpoint.stopping import Suspension
from effectflow.effects.errors import Halt

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run

_GRACE = 0.02
"""The seconds for which all flows must rest before a run is suspended, because a branch may be about to
begin. A run whose flows are busy also waits this long before it looks for messages."""


@dataclass(eq=False, slots=True)
class _Rest:
    """What one flow waits for. `until` is in seconds since the epoch. `look` ends the rest."""

    until: float
    what: str
    look: Callable[[], object] | None


class Activity:
    """The flows of a run that are busy, and what the others wait for.

    Attributes:
        busy: the number of flows that do not rest.
        changes: grows whenever a flow begins or ends a rest.
        on_rest: called when the last busy flow begins to rest, if not None.
    """

    __slots__ = ("_deadlines", "_rests", "busy", "changes", "on_rest")

    def __init__(self) -> None:
        self.busy = 1
        self.changes = 0
        self.on_rest: Callable[[], object] | None = None
        self._rests: dict[_Rest, None] = {}
        self._deadlines: dict[object, float] = {}

    @contextmanager
    def rest(
        self,
        what: str,
        until: float = math.inf,
        look: Callable[[], object] | None = None,
        *,
        is_pinned: bool = False,
    ) -> Generator[None]:
        """Count a flow as resting while the block runs.

        Parameters:
            what: what it waits for, in words.
            until: when it continues by itself, in seconds since the epoch.
            look: ends the wait, so that the flow checks whether it still has to wait.
            is_pinned: whether it counts as busy all the same; see `DurableFlow`.
        """
        rest = _Rest(until, what, look)
        self._rests[rest] = None
        self.changes += 1
        if not is_pinned:
            self.end_branch()
        try:
            yield
        finally:
            if not is_pinned:
                self.busy += 1
            self.changes += 1
            del self._rests[rest]

    def end_branch(self) -> None:
        """Decrement the number of busy flows."""
        self.busy -= 1
        if self.busy == 0 and self.on_rest is not None:
            self.on_rest()

    def look_again(self) -> None:
        """Let each flow check whether it still has to wait."""
        for rest in list(self._rests):
            if rest.look is not None:
                rest.look()

    def begin_deadline(self, operator: object, until: float) -> None:
        """Note that an operator cancels its branches at this time, in seconds since the epoch."""
        self._deadlines[operator] = until

    def end_deadline(self, operator: object) -> None:
        """Note that an operator has ended."""
        self._deadlines.pop(operator, None)

    @property
    def next_at(self) -> float:
        """When the first flow continues by itself, in seconds since the epoch; infinite if none does."""
        until = (rest.until for rest in self._rests)
        return min((*until, *self._deadlines.values()), default=math.inf)

    @property
    def waits_for(self) -> str:
        """What the flows wait for, in words."""
        kinds = dict.fromkeys(rest.what for rest in self._rests)
        shown = list(kinds)[:3]
        more = len(kinds) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


class Drain:
    """Asks the runs of a worker to begin nothing more. Each ends after its steps in progress."""

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

    Until then, read messages as they arrive. The block reads earlier messages and runs the body.
    """
    assert run.drain is not None
    attendant = _Attendant(run, run.drain, suspend_after)
    run.activity.on_rest = attendant.woken.set
    run.drain.notify(attendant.woken)
    try:
        async with watching(run.checkpoints.store, run.run_id, attendant.note_change):
            run.stopping.start(attendant.attend)
            yield
    finally:
        attendant.attending.cancel()
        run.activity.on_rest = None
        run.drain.forget(attendant.woken)


class _Attendant:
    """Suspends one run when it rests, and passes messages to its flows.

    Attributes:
        woken: set whenever there may be something to do.
        attending: the cancel scope of `attend`.
    """

    def __init__(self, run: Run, drain: Drain, suspend_after: float) -> None:
        self._run = run
        self._drain = drain
        self._suspend_after = suspend_after
        self._has_changed = False
        self._passed_on = 0
        self.woken = Wakeup()
        self.attending = anyio.CancelScope()

    def note_change(self) -> None:
        """Note that the run may have changed in the store."""
        self._has_changed = True
        self.woken.set()

    async def attend(self) -> None:
        """Pass on messages until the run is suspended."""
        run, activity = self._run, self._run.activity
        try:
            with self.attending:
                while True:
                    if self._has_changed:
                        if activity.busy:
                            # Most changes of a run are its own entries, and it may end soon.
                            await anyio.sleep(_GRACE)
                        self._has_changed = False
                        await self._pass_on_messages()
                    elif activity.busy == 0 and await self._may_suspend():
                        waits = Suspension(activity.next_at, activity.waits_for, run.mailbox.seen)
                        run.stopping.suspend(waits)
                        return
                    elif activity.busy > 0 or not self._has_changed:
                        await self.woken.wait()
        except Halt:
            # The store cannot be read, so the run ends with all its flows.
            run.stopping.flows.cancel()

    async def _pass_on_messages(self) -> bool:
        """Let all flows look at new messages, even if one has read them. Return whether there are any."""
        await self._run.look_for_messages()
        newest = self._run.mailbox.seen
        if newest == self._passed_on:
            return False
        self._passed_on = newest
        self._run.activity.look_again()
        # If no flow waits for these messages, nothing else starts another check for a suspension.
        self.woken.set()
        return True

    async def _may_suspend(self) -> bool:
        """Return whether all flows have read all messages, and will rest for a long time."""
        run, activity, seen = self._run, self._run.activity, self._run.activity.changes
        await anyio.sleep(_GRACE)
        if await self._pass_on_messages():
            return False
        if activity.busy or activity.changes != seen:
            return False
        return self._drain.has_begun or activity.next_at - run.now() > self._suspend_after
