"""Suspend a run once all of its fibers rest: they wait for times, messages or other runs.

The journal records for what they wait, so the run needs no process meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from effectflow.checkpoint.endings import Suspension
from effectflow.checkpoint.notifications import Wakeup, watching
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.stopping import Drain
from effectflow.effects.errors import Halt

_GRACE = 0.02
"""The seconds for which all fibers must rest before a run is suspended. A run whose fibers are busy also
waits this long before it looks for messages."""


@asynccontextmanager
async def attended(run: Run, suspend_after: float) -> AsyncGenerator[None]:
    """Suspend a run once all its fibers wait for more than this many seconds, or its worker drains.

    Until then, read messages as they arrive. The block reads earlier messages and runs the body.
    """
    assert run.drain is not None
    attendant = _Attendant(run, run.drain, suspend_after)
    run.turns.on_idle = attendant.woken.set
    run.drain.attendants.add(attendant)
    try:
        async with watching(run.checkpoints.store, run.run_id, attendant.note_change):
            run.stopping.start(attendant.attend)
            yield
    finally:
        attendant.attending.cancel()
        run.turns.on_idle = None
        run.drain.attendants.discard(attendant)


class _Attendant:
    """Suspends one run when it rests, and passes messages to its fibers.

    Attributes:
        woken: set whenever there may be something to do.
        attending: the cancel scope of `attend`.
    """

    def __init__(self, run: Run, drain: Drain, suspend_after: float) -> None:
        self._run = run
        self._drain = drain
        self._suspend_after = suspend_after
        # A message may have arrived since the claim.
        self._has_changed = run.mailbox.is_known_empty
        self._is_waiting = False
        self._passed_on = 0
        self.woken = Wakeup()
        self.attending = anyio.CancelScope()

    @property
    def is_resting(self) -> bool:
        return self._is_waiting and not self.woken.is_set and self._run.turns.is_idle

    @property
    def turns(self) -> int:
        return self._run.turns.grants

    def note_change(self) -> None:
        """Note that the run may have changed in the store."""
        self._has_changed = True
        self.woken.set()

    async def attend(self) -> None:
        """Pass on messages until the run is suspended."""
        run, turns = self._run, self._run.turns
        try:
            with self.attending:
                while True:
                    if self._has_changed:
                        if not turns.is_idle:
                            # Most changes of a run are its own entries, and it may end soon.
                            await anyio.sleep(_GRACE)
                        self._has_changed = False
                        await self._pass_on_messages()
                    elif turns.is_idle and run.ends_at_rest is not None:
                        run.rest()
                        return
                    elif turns.is_idle and await self._may_suspend():
                        run.end_with(Suspension(self._next_at, self._waits_for, run.mailbox.seen))
                        return
                    elif not turns.is_idle or not self._has_changed:
                        self._is_waiting = True
                        await self.woken.wait()
                        self._is_waiting = False
        except Halt:
            # A message cannot be opened, so the run ends with all its fibers.
            run.stopping.flows.cancel()

    async def _pass_on_messages(self) -> bool:
        """Let all fibers look at new messages, even if one has read them. Return whether any came."""
        await self._run.requests.look_patiently()
        newest = self._run.mailbox.seen
        if newest == self._passed_on:
            return False
        self._passed_on = newest
        for fiber in list(self._run.turns.fibers):
            if fiber.resting is not None and fiber.resting.look is not None:
                fiber.resting.look()
        # If no fiber waits for these messages, nothing else starts another check for a suspension.
        self.woken.set()
        return True

    async def _may_suspend(self) -> bool:
        """Return whether all fibers have read all messages, and will rest for a long time."""
        run, turns, seen = self._run, self._run.turns, self._run.turns.grants
        await anyio.sleep(_GRACE)
        if await self._pass_on_messages():
            return False
        if not turns.is_idle or turns.grants != seen:
            return False
        return self._drain.has_begun or self._next_at - run.now() > self._suspend_after

    @property
    def _next_at(self) -> float:
        """When the first fiber continues by itself, in seconds since the epoch; infinite if none does."""
        turns = self._run.turns
        rests = [fiber.resting.until for fiber in turns.fibers if fiber.resting is not None]
        return min((*rests, *(one.until for one in turns.deadlines)), default=math.inf)

    @property
    def _waits_for(self) -> str:
        """What the fibers wait for, in words."""
        rests = (fiber.resting for fiber in self._run.turns.fibers)
        kinds = list(dict.fromkeys(rest.what for rest in rests if rest is not None))
        more = len(kinds) - 3
        return ", ".join(kinds[:3]) + (f" and {more} more" if more > 0 else "")
