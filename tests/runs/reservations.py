"""What is reserved, used and released by steps, in runs that are stopped meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Result

from effectflow import Checkpoints, Do, Effect, Workflow, bracket, step, workflow
from effectflow.checkpoint import Completed, read_entries
from effectflow.effects import from_async
from effectflow.effects.clock import SystemClock
from effectflow.stores import MemoryStore
from tests.sweeps import in_turn

AnyEffect = Effect[Any, Any, Any]
AnyWorkflow = Workflow[Any, Any, str, Any]

WAYS = [("asyncio", "scope"), ("asyncio", "task"), ("trio", "scope")]

everywhere = pytest.mark.parametrize(("anyio_backend", "way"), WAYS)
"""How a run is stopped."""


def somewhere(**axes: Collection[Any]) -> pytest.MarkDecorator:
    """Parametrize a test as `in_turn` does, each case in one of the ways."""
    return in_turn(**axes | {"anyio_backend,way": WAYS})


@dataclass
class World:
    """What the steps act on. It outlives the process, as they do not."""

    held: set[str] = field(default_factory=set[str])
    done: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])


class Limits(SystemClock):
    """Its timeouts of less than a minute strike when they are told to."""

    def __init__(self) -> None:
        self._running: list[anyio.CancelScope] = []

    def move_on_after(self, seconds: float) -> anyio.CancelScope:
        limit = anyio.CancelScope()
        if seconds < 60:
            self._running.append(limit)
        return limit

    def strike(self) -> None:
        for limit in self._running:
            limit.cancel()


@dataclass
class App:
    """One life of a process. It is to be stopped once the step `stop_in` has begun."""

    checkpoints: Checkpoints
    world: World = field(default_factory=World)
    stop_in: str | None = None
    began: anyio.Event = field(default_factory=anyio.Event)
    waits: anyio.Event = field(default_factory=anyio.Event)
    clock: Limits = field(default_factory=Limits)

    async def run(self, effect: AnyEffect, **options: Any) -> Result[Any, Any]:
        return await effect.run(self, clock=self.clock, **options)


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


def acting(name: str, act: Callable[[World], object]) -> Effect[App, Any, str]:
    async def run(app: App) -> str:
        app.world.done.append(name)
        if app.stop_in == name:
            app.began.set()
        # Long enough for the stop to come meanwhile.
        await turns(12)
        act(app.world)
        return name

    return from_async(run)


@step
def reserve(what: str) -> Effect[App, Any, str]:
    return acting(f"reserve {what}", lambda world: world.held.add(what)).map(lambda _: what)


@step
def release(what: str) -> Effect[App, Any, str]:
    return acting(f"release {what}", lambda world: world.held.discard(what))


@step
def use(what: str) -> Effect[App, Any, str]:
    def check(world: World) -> None:
        if what not in world.held:
            world.problems.append(f"{what} was used after it had been released")

    return acting(f"use {what}", check)


@step
def wait(what: str) -> Effect[App, Any, str]:
    return waiting_forever(what)


def waiting_forever(what: str) -> Effect[App, Any, str]:
    """Never ends by itself. Once it waits, timeouts strike, and others may end."""

    async def run(app: App) -> str:
        app.world.done.append(f"wait {what}")
        app.waits.set()
        app.clock.strike()
        await anyio.sleep_forever()
        return what

    return from_async(run)


async def others_wait(app: App) -> None:
    if "wait a" not in app.world.done:
        await app.waits.wait()


def reserved(what: str, using: Callable[[str], AnyEffect] = use) -> Effect[Any, Any, Any]:
    return bracket(reserve(what), release, using)


@workflow
def plain(what: str) -> Do[App, Any, object]:
    used = yield from reserved(what)
    return [used, (yield from use_nothing(what))]


@step
def use_nothing(what: str) -> Effect[App, Any, str]:
    return acting(f"go on after {what}", lambda _: None)


async def run_until(told: Callable[[], Any], effect: AnyEffect, app: App, way: str) -> None:
    """Run the effect until `told` returns, and stop it from outside: by asyncio itself, or a scope."""
    if way == "task":
        task = asyncio.create_task(app.run(effect))
        with anyio.fail_after(30):
            await told()
        task.cancel()
        await asyncio.wait([task])
        return
    async with anyio.create_task_group() as group:
        group.start_soon(app.run, effect)
        with anyio.fail_after(30):
            await told()
        group.cancel_scope.cancel()


async def completed_steps(store: MemoryStore, run_id: str = "r") -> list[str]:
    entries = await read_entries(store, run_id)
    return sorted(entry.step for entry in entries if isinstance(entry, Completed))
