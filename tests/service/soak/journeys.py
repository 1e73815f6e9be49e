"""What the runs of a soak do: journeys of ten steps, with waits, children and ends of all kinds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Never

import anyio
from returns.result import Failure, Result, Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    Signal,
    ask,
    compensate,
    current_step,
    do,
    par,
    patched,
    pure,
    saga,
    sleep,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import RunCancelled, RunStatus
from effectflow.effects import TimedOut, from_async
from effectflow.service import Child

STEPS = 10
"""The steps of a journey, besides those of what it waits for."""

LONGEST_STEP = 0.02
LONGEST_SLEEP = 0.2
"""Seconds."""


class Refused(Exception):
    """The typed failure of a journey."""


@dataclass(frozen=True)
class SideEffect:
    """What a step has done in the world, in one of its attempts."""

    run_id: str
    step: str
    attempt: int
    key: str


@dataclass(frozen=True)
class World:
    """The environment: side effects go to the end of a file, which processes share and no death cuts."""

    checkpoints: Checkpoints
    file: Path
    is_new: bool = False
    """Whether this is the new version of the program, in which journeys have a step more."""

    def note(self, effect: SideEffect) -> None:
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, json.dumps(asdict(effect)).encode() + b"\n")
        finally:
            os.close(descriptor)


def side_effects(file: Path) -> list[SideEffect]:
    """Return the side effects of all steps, in order."""
    return [SideEffect(**json.loads(line)) for line in file.read_text().splitlines()]


def _perform() -> Effect[World, Never, int]:
    """Change the world, and yield the number of the attempt that did it."""

    async def perform(world: World) -> int:
        info = current_step()
        chance = Random(f"{info.idempotency_key} {info.attempt}")
        await anyio.sleep(chance.uniform(0, LONGEST_STEP))
        world.note(SideEffect(info.run_id, info.step, info.attempt, info.idempotency_key))
        await anyio.sleep(chance.uniform(0, LONGEST_STEP))
        return info.attempt

    return from_async(perform)


@step
def act() -> Effect[World, Never, int]:
    return _perform()


@step(retry=RetryPolicy.constant(0.01).with_max_retries(3))
def insist() -> Effect[World, Refused, int]:
    """Fail in the first attempt."""
    return _perform().ensure(lambda attempt: attempt > 1, Refused("not at once"))


@step
def refuse() -> Effect[World, Refused, int]:
    """Fail in each attempt."""
    return _perform().ensure(lambda _: False, Refused("never"))


@step
def insure() -> Effect[World, Never, int]:
    return _perform()


@step
def hesitate() -> Effect[World, Refused, int]:
    """Fail in the first attempt. A retry of the run makes another one."""
    return _perform().ensure(lambda attempt: attempt > 1, Refused("not at once"))


@step
def collapse() -> Effect[World, Refused, int]:
    """Raise what nothing declares."""

    def collapsed(_: int) -> int:
        raise RuntimeError("collapsed")

    return _perform().map(collapsed)


@step
def book(number: int) -> Effect[World, Never, int]:
    return _perform()


@step
def unbook(number: int) -> Effect[World, Never, int]:
    return _perform()


advice: Signal[int] = Signal("advice", int)
"""Is sent as often as a journey has `advice`: 0, 1 and so on."""

release: Signal[None] = Signal("release", None)
"""Is never sent."""


@workflow
def errand(is_endless: bool) -> Do[World, Refused, str]:
    """What journeys spawn."""
    yield from act()
    yield from sleep(LONGEST_SLEEP / 2)
    if is_endless:
        yield from release.wait()
    yield from act()
    return "done"


@workflow
def detour(seconds: float) -> Do[World, Refused, str]:
    """What journeys call."""
    yield from act()
    yield from sleep(seconds)
    yield from act()
    return "done"


@workflow
def journey(legs: list[str]) -> Do[World, Refused, list[int | str]]:
    """Do what the legs say, one after another. Yield the advice and the results, in order.

    If it fails or is cancelled, what was booked is unbooked.
    """
    return (yield from saga(_travel(legs)).on_exit(act()))


def _unbook(number: int, _: int) -> Effect[World, Never, int]:
    return unbook(number)


@do
def _travel(legs: list[str]) -> Do[World, Any, list[int | str]]:
    seen: list[int | str] = []
    errands: list[Child[Refused, str]] = []
    world = yield from ask(World)
    for number, leg in enumerate(legs):
        if world.is_new and number == len(legs) // 2 and (yield from patched("insurance")):
            yield from insure()
        match leg:
            case "act":
                yield from act()
            case "book":
                yield from compensate(book(number), partial(_unbook, number))
            case "insist":
                yield from insist()
            case "act twice at once":
                yield from par(act(), sleep(0.01).within(World).and_then(lambda _: act()))
            case "sleep":
                yield from sleep(LONGEST_SLEEP)
            case "advice":
                seen.append((yield from advice.wait()))
            case "impatience":
                waited = release.wait().within(World).timeout(LONGEST_SLEEP)
                yield from waited.recover(TimedOut, lambda _: act())
            case "detour":
                seen.append((yield from detour.call(LONGEST_SLEEP)))
            case "errand" | "endless errand":
                errands.append((yield from spawn(errand, leg == "endless errand")))
            case "return of errand":
                seen.append((yield from errands.pop(0).result()))
            case "release":
                yield from release.wait()
            case "refuse":
                yield from refuse()
            case _:
                raise AssertionError(leg)
    return seen


@workflow
def payment(kind: str) -> Do[World, Refused, list[int]]:
    """Fail until an operator helps, in the way that the kind says."""
    first = yield from act()
    match kind:
        case "retry":
            paid = yield from hesitate()
        case "complete":
            paid = yield from refuse()
        case _:
            paid = yield from collapse().recover(Refused, lambda _: pure(DECLINED))
    yield from act()
    return [first, paid]


@workflow
def trifle(number: int) -> Do[World, Never, int]:
    """Do nothing. Most of these are pruned."""
    return (yield from pure(number))


WORKFLOWS = [journey, errand, payment, trifle]
KINDS = ["retry", "complete", "fail"]
PAID, DECLINED, CHANGED = 1001, 1002, 1003
"""What an operator says that a refused payment has yielded, what a failed one yields, and what a fork has
as its first output."""


@dataclass(frozen=True)
class Plan:
    """What one journey is to do, and how it has to end.

    Attributes:
        ends: the status in which it has to end.
        seen: what it yields if it completes.
    """

    run_id: str
    legs: list[str]
    ends: RunStatus
    seen: list[int | str]

    @property
    def result(self) -> Result[list[int | str], Exception]:
        """What its customer has to be told."""
        match self.ends:
            case RunStatus.COMPLETED:
                return Success(self.seen)
            case RunStatus.FAILED:
                return Failure(Refused("never"))
            case _:
                return Failure(RunCancelled(self.run_id))


def planned(number: int, seed: int) -> Plan:
    """Return the plan of a journey: the same for the same number and seed."""
    chance = Random(f"{seed} {number}")
    ends = chance.choices([RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED], [6, 1, 3])[
        0
    ]
    legs = chance.choices(["act", "book", "insist", "act twice at once"], [6, 2, 1, 1], k=STEPS)
    between = ["sleep", "advice", "advice", "impatience", "detour"]
    for leg in chance.sample(between, chance.randint(1, len(between))):
        legs.insert(chance.randint(0, len(legs)), leg)
    for _ in range(chance.randint(0, 2)):
        left, returned = sorted(chance.sample(range(len(legs) + 1), 2))
        legs.insert(returned, "return of errand")
        legs.insert(left, "errand")
    if ends is RunStatus.FAILED:
        legs.append("refuse")
    if ends is RunStatus.CANCELLED:
        # It cannot come to its end, and nor can its errand.
        legs.insert(chance.randint(0, len(legs)), "endless errand")
        legs.append("release")
    return Plan(f"journey-{number}", legs, ends, _seen(legs))


def _seen(legs: Iterable[str]) -> list[int | str]:
    advice_so_far = count()
    return [
        next(advice_so_far) if leg == "advice" else "done"
        for leg in legs
        if leg in ("advice", "detour", "return of errand")
    ]
