"""Choose in which order runs take what arrives, write the order down, and find a shorter one.

What may be taken is sorted by run, and then by fiber, in the order in which the fibers began. Always to
take the first of them is the *first order*: each branch goes on as far as it can before the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from random import Random
from types import coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, cast

import anyio
from anyio import to_thread

from effectflow.checkpoint import Lease
from effectflow.checkpoint.fiber import DurableFiber
from effectflow.checkpoint.turns import Turns
from effectflow.checkpoint.waits import Deadline
from effectflow.effects.event_loop import PerEventLoop, spawn_background
from effectflow.effects.paths import StepPath, is_within
from effectflow.stores import MemoryStore
from effectflow.testing import doubles
from effectflow.testing.rest import come_to_rest, seconds_to_next_timer
from effectflow.testing.watch import Watch

if TYPE_CHECKING:
    from effectflow.checkpoint.order import Order
    from effectflow.checkpoint.run import Run

Choose: TypeAlias = Callable[[int, int], int]
"""Returns which arrival to take, given the number of the turn, and of arrivals."""

Choices: TypeAlias = dict[int, int]
"""Which arrivals to take in the turns in which that is not the first one."""

_MOST_TURNS = 20_000
"""Runs that take more turns, or jumps of the time, count as endless."""

_SOON = 0.2
"""The real seconds in which a timer of the event loop may still let something arrive."""

_MOST_LINES = 40
"""The lines of an order that are shown without leaving any out."""


class Taken(NamedTuple):
    """One turn of an order.

    Attributes:
        what: what was taken, in words.
        before: what the first order takes here; empty if that is the same.
    """

    what: str
    before: str = ""

    def __str__(self) -> str:
        return f"{self.what}, before {self.before}" if self.before else self.what


def shown(order: Sequence[Taken]) -> str:
    """Return an order as text. Marks show where it differs from the first order."""
    marked = [at for at, taken in enumerate(order) if taken.before]
    lines: list[str] = []
    for at, taken in enumerate(order):
        is_near = any(-2 <= at - mark <= 2 for mark in marked)
        if is_near or len(order) <= _MOST_LINES:
            lines.append(
                f"{'>' if taken.before else ' '} {at + 1:>{len(str(len(order)))}}. {taken}"
            )
        elif not lines or lines[-1] != "  ...":
            lines.append("  ...")
    return "\n".join(lines)


def checked_seeds(seeds: object) -> list[int]:
    """Return the seeds. Raise TypeError or ValueError unless there are some."""
    chosen: list[Any] = (
        list(cast("Iterable[Any]", seeds)) if isinstance(seeds, Iterable) else [seeds]
    )
    if not isinstance(seeds, Iterable) or not all(type(seed) is int for seed in chosen):
        raise TypeError(f"the seeds of explore are integers, such as range(20), not {seeds!r}")
    if not chosen:
        raise ValueError("explore needs at least one seed, such as seeds=range(20)")
    return chosen


def by_seed(seed: int) -> Choose:
    """Return a function that chooses by a seed."""
    random = Random(seed)
    return lambda _turn, arrivals: int(random.random() * arrivals)


def by_choices(choices: Choices) -> Choose:
    """Return a function that chooses as another run did, and otherwise the first arrival."""
    return lambda turn, arrivals: min(choices.get(turn, 0), arrivals - 1)


def shrinking(choices: Choices) -> Generator[Choices, Choices | None, None]:
    """Yield choices that differ less from the first order.

    Expects to be sent the choices that were made, if these show the problem, too; otherwise None.
    """
    size = len(choices)
    while size:
        turns = sorted(choices)
        for start in range(0, len(turns), size):
            left_out = turns[start : start + size]
            fewer = {turn: at for turn, at in choices.items() if turn not in left_out}
            made = yield fewer
            if made is not None:
                choices = made
                size = min(size, len(choices))
                break
        else:
            size //= 2


class TakesTurns(MemoryStore):
    """A MemoryStore whose appends wait, as those of other stores do, so that other branches go on."""

    was_used = False

    async def append(self, lease: Lease, *bodies: Any, **options: Any) -> None:
        self.was_used = True
        await anyio.lowlevel.cancel_shielded_checkpoint()
        await super().append(lease, *bodies, **options)


class _Candidate(NamedTuple):
    """Something that may be taken.

    Attributes:
        place: its place in the first order.
        what: what it is, in words.
        arrival: an arrival in the turns of a run, or a fiber whose async code may go on.
    """

    place: tuple[int, int, int, str]
    what: str
    turns: Turns
    arrival: Arrival


class Explorer(Watch):
    """Takes what arrives in the runs that begin within the block, in an order of its choice.

    Parameters:
        choose: chooses among several arrivals.
        patience: the real seconds to wait for a thread.
        is_whole: whether nothing but the runs goes on in the block. Then they end with an error if
            nothing happens for that long.

    Attributes:
        order: what was taken.
        choices: which arrivals, where it was not the first one.
        begun: how many runs have begun.
    """

    def __init__(self, choose: Choose, *, patience: float, is_whole: bool = False) -> None:
        super().__init__()
        self.order: list[Taken] = []
        self.choices: Choices = {}
        self.begun = 0
        self._choose = choose
        self._patience = patience
        self._is_whole = is_whole
        self._runs: list[Turns] = []
        self._waiting: dict[DurableFiber, Waiter] = {}
        self._last: tuple[DurableFiber, str] | None = None
        self._happened = 0
        self._happened_at = time.monotonic()
        self._locks = PerEventLoop(anyio.Lock)

    def __enter__(self) -> Self:
        super().__enter__()
        self.begin()
        return self

    def __exit__(self, *raised: object) -> None:
        self._note_end()
        super().__exit__(*raised)

    def replace_functions(self) -> None:
        self.around(Turns, "__init__", self._creating)
        self.around(DurableFiber, "released", self._releasing)
        self.around(doubles, "come_to_rest", lambda _: self._rest)
        self.around(doubles.TestClock, "_jump", self._jumping)

    def _creating(self, create: Callable[..., None]) -> Callable[..., None]:
        def creating(turns: Turns, run: Run, order: Order) -> None:
            create(turns, run, order)
            if run.planning is None:
                turns.explore = self._note
                self._runs.append(turns)
                self.begun += 1

        return creating

    def _releasing(self, release: Callable[..., Any]) -> Callable[..., Any]:
        def releasing(fiber: DurableFiber, work: Any) -> Any:
            # Coroutines are work of the engine, such as saves.
            is_local = isinstance(work, Generator)
            return release(fiber, self._stepwise(fiber, work) if is_local else work)

        return releasing

    @coroutine
    def _stepwise(self, fiber: DurableFiber, work: Any) -> Generator[Any, Any, Any]:
        """Run async code. After each wait, it goes on once that is taken."""
        try:
            wanted = work.send(None)
            while True:
                try:
                    sent = yield wanted
                    yield from self._wait_to_go_on(fiber).__await__()
                except BaseException as raised:
                    wanted = work.throw(raised)
                else:
                    wanted = work.send(sent)
        except StopIteration as stop:
            return stop.value

    async def _wait_to_go_on(self, fiber: DurableFiber) -> None:
        waiter = self._waiting[fiber] = new_waiter()
        self._note(fiber.turns)
        try:
            # What the code has waited for has happened, so it is too late for a cancellation.
            with anyio.CancelScope(shield=True):
                await waiter
        finally:
            del self._waiting[fiber]

    def _jumping(self, jump: Callable[[Any], None]) -> Callable[[Any], None]:
        def jumping(clock: Any) -> None:
            jump(clock)
            # What is due at the same time may arrive in any order.
            while clock._next_due() == clock.monotonic():
                jump(clock)
            self._happens()

        return jumping

    def _note(self, _: Turns) -> None:
        """Take an arrival soon. If a clock comes to rest, it does that."""
        if not self._locks.get().locked():
            spawn_background(self._rest)

    async def _rest(self) -> None:
        """Let the event loop come to rest, and take what has arrived, until nothing is left."""
        async with self._locks.get():
            await self._let_arrive()
            while self._take():
                await self._let_arrive()
            if self._is_whole and time.monotonic() - self._happened_at > self._patience:
                self._end_runs(f"nothing has happened for {self._patience:g} s")

    async def _let_arrive(self) -> None:
        """Wait until everything that can arrive has arrived."""
        await come_to_rest()
        began = time.monotonic()
        while any(turns.working for turns in self._runs):
            passed = time.monotonic() - began
            may_be_timer = passed + seconds_to_next_timer() < _SOON
            has_threads = to_thread.current_default_thread_limiter().borrowed_tokens > 0
            if not may_be_timer and not (has_threads and passed < self._patience):
                return
            await anyio.sleep(0.001)
            await come_to_rest()

    def _take(self) -> bool:
        """Take an arrival. Return False if there is none."""
        self._note_end()
        self._runs = [turns for turns in self._runs if not turns.run.writer.is_ending]
        found = sorted(self._candidates(), key=lambda candidate: candidate.place)
        if not found:
            return False
        turn = len(self.order)
        chosen = self._choose(turn, len(found)) if len(found) > 1 else 0
        if chosen:
            self.choices[turn] = chosen
        _, what, turns, arrival = found[chosen]
        self.order.append(Taken(what, found[0].what if chosen else ""))
        self._happens()
        if isinstance(arrival, DurableFiber) and is_within(arrival.place, arrival.step):
            self._last = arrival, arrival.step
        if arrival in self._waiting:
            wake(self._waiting[arrival])
        else:
            turns.take_arrival(turns.arrived.index(arrival))
        return True

    def _candidates(self) -> Iterator[_Candidate]:
        for number, turns in enumerate(self._runs):
            places = {fiber: place for place, fiber in enumerate(turns.fibers)}
            run = f" in run {turns.run.run_id!r}" if self.begun > 1 else ""
            may_take = not (turns.is_over or turns.holder or turns.ready or turns.overdue)
            for arrival in (*self._waiting, *(turns.arrived if may_take else ())):
                if isinstance(arrival, DurableFiber):
                    if arrival not in places:
                        continue
                    what, place = _of_fiber(arrival), (0, places[arrival], "")
                elif isinstance(deadline := getattr(arrival, "__self__", None), Deadline):
                    what, place = f"timeout {deadline.path!r} fires", (1, 0, deadline.path)
                else:
                    what, place = "the run is cancelled", (2, 0, "")
                yield _Candidate((number, *place), what + run, turns, arrival)

    def _note_end(self) -> None:
        """Note whether the step that went on in the last turn has ended in it."""
        if self._last is not None:
            fiber, step = self._last
            if fiber.step != step and not is_within(fiber.step, step):
                what, before = self.order[-1]
                self.order[-1] = Taken(what.replace("goes on", "ends", 1), before)
            self._last = None

    def _happens(self) -> None:
        self._happened += 1
        self._happened_at = time.monotonic()
        if self._happened == _MOST_TURNS:
            self._end_runs(f"it has taken {self._happened:,} turns")

    def _end_runs(self, reason: str) -> None:
        for turns in self._runs:
            run = turns.run
            if not turns.is_over and not run.writer.is_ending:
                places = sorted({fiber.place for fiber in turns.fibers if fiber.place})
                where = ", ".join(map(repr, places)) or "its beginning"
                run.give_up_life(
                    AssertionError(f"run {run.run_id!r} does not end: {reason}. It is at {where}")
                )


def _of_fiber(fiber: DurableFiber) -> str:
    """Return what goes on if a fiber does, in words."""
    place = fiber.place
    name = StepPath(place).name
    if place == fiber.step:
        return f"step {place!r} begins"
    if name == "sleep":
        return f"timer {place!r} fires"
    if name.startswith("signal:"):
        return f"the wait for {place!r} goes on"
    if fiber.step:
        return f"step {fiber.step!r} goes on"
    return f"{place!r} goes on"
