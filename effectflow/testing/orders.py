"""Choose the order in which runs take what arrives, write it down, and find a shorter one.

What has arrived is sorted: first what belongs to the branch that went on last, and then by run and by
branch. Always to take the first of it is the *first order*: each branch goes on as far as it can before
the next one does. So the choices of an order are its switches between branches.
"""

from __future__ import annotations

import sys
import time
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Sequence,
    Sized,
)
from random import Random
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, cast

import anyio
import anyio.lowlevel

from effectflow.checkpoint.baton import Arrival
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.turns import Turns
from effectflow.checkpoint.waits import Deadline
from effectflow.effects.event_loop import running_backend, spawn_background
from effectflow.effects.paths import StepPath

Choose: TypeAlias = Callable[[int, int], int]
"""Returns which arrival to take, given the number of the turn, and of arrivals."""

Choices: TypeAlias = dict[int, int]
"""Which arrivals to take in the turns in which that is not the first one."""

_SECONDS_TO_SHORTEN = 20.0

_ROUNDS = 50
"""The most rounds of the event loop that a task may take until it waits again."""

_MOST_LINES = 40
"""The lines of an order that are shown without leaving any out."""


async def come_to_rest() -> None:
    """Let the other tasks run until all of them wait, and the explorer has taken what has arrived."""
    explorer = Explorer.active
    if explorer is None:
        await _let_others_wait()
        return
    try:
        await explorer.take_all()
    except anyio.get_cancelled_exc_class():
        # Runs that do not need this clock go on.
        spawn_background(explorer.take_all)
        raise


class Explorer:
    """Takes what arrives in all runs within the block, in an order of its choice.

    Attributes:
        order: what was taken, in words.
        choices: which arrivals, where that was not the first one.
    """

    active: ClassVar[Explorer | None] = None

    def __init__(self, choose: Choose) -> None:
        self.order: list[str] = []
        self.choices: Choices = {}
        self._choose = choose
        self._runs: dict[Turns, None] = {}
        self._last: Arrival | None = None
        self._lock = anyio.Lock()

    def __enter__(self) -> Self:
        if Explorer.active is not None:
            raise RuntimeError(
                "another exploration is in progress, and there can be only one at a time"
            )
        Explorer.active = self
        Turns.explore = self._notice
        return self

    def __exit__(self, *_: object) -> None:
        Explorer.active = Turns.explore = None

    def _notice(self, turns: Turns) -> None:
        self._runs[turns] = None
        # Otherwise a task is about to take it.
        if not self._lock.locked():
            spawn_background(self.take_all)

    async def take_all(self) -> None:
        """Take what has arrived, one by one, whenever all other tasks wait."""
        async with self._lock:
            await _let_others_wait()
            while self._take():
                await _let_others_wait()

    def _take(self) -> bool:
        found = sorted(self._found(), key=lambda arrived: arrived.place)
        if not found:
            return False
        turn = len(self.order)
        at = self._choose(turn, len(found)) if len(found) > 1 else 0
        what = found[at].what
        if at:
            self.choices[turn] = at
            what += f", before {found[0].what}"
        self.order.append(what)
        turns, self._last = found[at].turns, found[at].arrival
        del self._runs[turns]
        turns.take_arrival(turns.arrived.index(self._last))
        return True

    def _found(self) -> Iterator[_Arrived]:
        for turns in self._runs:
            if not (turns.is_over or turns.holder or turns.ready or turns.overdue):
                fibers = {fiber: at for at, fiber in enumerate(turns.fibers)}
                for arrival in turns.arrived:
                    # Timeouts and cancellations come after all branches.
                    at = fibers[arrival] if isinstance(arrival, DurableFiber) else len(fibers)
                    what = _in_words(arrival)
                    place = (arrival is not self._last, turns.run.run_id, at, what)
                    yield _Arrived(place, what, turns, arrival)


class _Arrived(NamedTuple):
    place: tuple[bool, str, int, str]
    what: str
    turns: Turns
    arrival: Arrival


def _in_words(arrival: Arrival) -> str:
    if not isinstance(arrival, DurableFiber):
        owner = getattr(arrival, "__self__", None)
        return (
            f"timeout {owner.path!r} fires"
            if isinstance(owner, Deadline)
            else "the run is cancelled"
        )
    place, step, line = arrival.place, arrival.step, arrival.line
    if place == step:
        return f"step {step!r} begins"
    match StepPath(place).name:
        case "sleep":
            return f"timer {place!r} fires"
        case "local":
            owner = f"step {step!r}" if step else f"branch {line!r}" if line else "the body"
            return f"{owner} goes on"
        case _:
            return f"{place!r} goes on"


def shown(order: Sequence[str], marked: Collection[int]) -> str:
    """Return an order as text, with marks at some turns. Of a long one, show what is near the marks."""
    lines: list[str] = []
    for at, what in enumerate(order):
        if len(order) <= _MOST_LINES or any(abs(at - mark) <= 2 for mark in marked):
            lines.append(f"{'>' if at in marked else ' '} {at + 1:>{len(str(len(order)))}}. {what}")
        elif lines[-1:] != ["  ..."]:
            lines.append("  ...")
    return "\n".join(lines)


def checked_seeds(seeds: object) -> list[int]:
    """Return the seeds. Raise TypeError or ValueError unless there are some."""
    is_many = isinstance(seeds, Iterable)
    given: list[Any] = list(cast("Iterable[Any]", seeds)) if is_many else []
    if not is_many or not all(type(seed) is int for seed in given):
        raise TypeError(f"the seeds of explore are integers, such as range(20), not {seeds!r}")
    if not given:
        raise ValueError("explore needs at least one seed, such as seeds=range(20)")
    return given


def first_order(_turn: int, _arrivals: int) -> int:
    """Choose the first arrival."""
    return 0


def searched_orders(seeds: Iterable[int]) -> Generator[tuple[int, Choose], Choices | None, None]:
    """Yield an order for each seed. After one that fails, yield shorter ones instead.

    Expects to be sent the choices that were made in the order if it fails, and None if it passes. The
    last order that fails is the shortest one.
    """
    for seed in seeds:
        choices = yield seed, _by_seed(seed)
        if choices is not None:
            yield from _shorter_orders(seed, choices)
            return


def _shorter_orders(
    seed: int, choices: Choices
) -> Generator[tuple[int, Choose], Choices | None, None]:
    """Yield orders with fewer choices: without all, without each half, each quarter, and so on."""
    until = time.monotonic() + _SECONDS_TO_SHORTEN
    size = len(choices)
    while size:
        turns = sorted(choices)
        for start in range(0, len(turns), size):
            left_out = turns[start : start + size]
            fewer = {turn: choices[turn] for turn in turns if turn not in left_out}
            made = yield seed, _by_choices(fewer)
            if time.monotonic() > until:
                return
            if made is not None:
                choices = made
                size = min(size, len(choices))
                break
        else:
            size //= 2


def _by_seed(seed: int) -> Choose:
    random = Random(seed)
    return lambda _turn, arrivals: int(random.random() * arrivals)


def _by_choices(choices: Choices) -> Choose:
    return lambda turn, arrivals: min(choices.get(turn, 0), arrivals - 1)


async def _let_others_wait() -> None:
    """Let the other tasks run until all of them wait, for at most `_ROUNDS` rounds of the loop."""
    if running_backend() == "trio":
        await _let_tasks_of_trio_wait()
        return
    import asyncio

    # Other implementations of the loop may not show which callbacks are ready to run.
    ready: Sized | None = getattr(asyncio.get_running_loop(), "_ready", None)
    for _ in range(_ROUNDS):
        await anyio.lowlevel.checkpoint()
        if ready is not None and not ready:
            return


async def _let_tasks_of_trio_wait() -> None:
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
