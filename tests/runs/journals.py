"""Journals as short text, and runs that continue from the first entries of a journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
from returns.result import Result

from effectflow import Do, Effect, Workflow, do, sleep, with_checkpointing, workflow
from effectflow.checkpoint import (
    BeforeStep,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    Completed,
    Entry,
    Failed,
    Finished,
    Interrupted,
    Local,
    Paused,
    Published,
    Resumed,
    RunStatus,
    SetAside,
    Signalled,
    Started,
    Suspended,
    TimerFired,
    Value,
    Waiting,
    find_run,
    read_entries,
)
from effectflow.checkpoint.integrity import Seal
from effectflow.effects import from_async, never
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, Broken, app_on, note

AnyEffect = Effect[Any, Any, Any]
AnyWorkflow = Workflow[Any, Any, Any, Any]


# Steps that tests name.


def act(name: str, seconds: float = 0) -> AnyEffect:
    """Return a step that notes its name, takes this time, and yields its name."""
    work = note(name).map_err(lambda _: Broken(name)).and_then(lambda _: sleep(seconds))
    return with_checkpointing(name, work.map(lambda _: name), error=Broken)


def late(name: str, seconds: float) -> AnyEffect:
    """Return a step that takes this time before it notes its name, and yields it."""
    noted: AnyEffect = note(name).map_err(lambda _: Broken(name))
    work = sleep(seconds).and_then(lambda _: noted)
    return with_checkpointing(name, work.map(lambda _: name), error=Broken)


def hang(name: str) -> AnyEffect:
    """Return a step that notes its name and never ends."""
    return with_checkpointing(name, note(name).and_then(lambda _: never()))


def after_others(effect: AnyEffect) -> AnyEffect:
    """Let the flows beside this one come to rest before it begins."""

    async def rest(_: object) -> None:
        for _ in range(30):
            await anyio.lowlevel.checkpoint()

    return from_async(rest).and_then(lambda _: effect)


# Workflows.


def made_of(build: Callable[[], AnyEffect], name: str = "made") -> AnyWorkflow:
    """Return a workflow whose body is the effect that this function builds in each life.

    It declares Broken, so a run around it can handle that.
    """

    @workflow(name=name)
    def made(_: object) -> Do[App, Broken, Any]:
        return (yield from build())

    return made


@do
def in_turn(*effects: AnyEffect) -> Do[App, Any, Any]:
    """Run effects one after another, and yield what the last one yields."""
    found: object = None
    for effect in effects:
        found = yield from effect
    return found


# Lives of a run.


def clock_at(seconds: float = 0) -> TestClock:
    """Return a clock that stands this many seconds after the beginning of all tests."""
    return TestClock(datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))


async def start(
    made: AnyWorkflow, app: App, *, at: float = 0, input: object = None
) -> Result[Any, Any]:
    """Start the run "r"."""
    return await clock_at(at).run(made.start(input, run_id="r"), app)


async def resume(
    made: AnyWorkflow, app: App, *, at: float = 0, force: bool = False
) -> Result[Any, Any]:
    """Resume the run "r"."""
    return await clock_at(at).run(made.resume("r", force=force), app)


async def stopped(effect: AnyEffect, app: object, *, at: float = 0, seconds: float = 1) -> None:
    """Run an effect that is stopped from outside after some time."""
    clock = clock_at(at)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(effect.run, app, clock=clock))
        await clock.advance(seconds)
        tasks.cancel_scope.cancel()


async def stopped_once(began: anyio.Event, effect: AnyEffect, app: object) -> None:
    """Run an effect that is stopped from outside once this has happened."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(effect.run, app)
        with anyio.fail_after(30):
            await began.wait()
        tasks.cancel_scope.cancel()


def waiting_once(began: anyio.Event) -> AnyEffect:
    """Return an effect that notes `wait`, never ends in its first life, and ends at once later."""

    async def wait(app: App) -> None:
        if app.world.note("wait") == 1:
            began.set()
            await anyio.sleep_forever()

    return from_async(wait)


def next_life(app: App, *, failing: tuple[str, ...] = (), store: MemoryStore | None = None) -> App:
    """Return an app with a new world, on the same store or another one."""
    found = app.checkpoints.store if store is None else store
    return app_on(found, failing=failing)


# Journals.


async def cut(store: Any, count: int, run_id: str = "r") -> MemoryStore:
    """Return a store that has the first entries of a run, as a crash after them leaves it."""
    shorter = MemoryStore()
    records = (await store.read(run_id))[:count]
    info = await find_run(store, run_id)
    assert info is not None
    last = (await read_entries(store, run_id))[len(records) - 1]
    status = last.status if isinstance(last, Finished) else RunStatus.RUNNING
    summary = replace(info.summary, status=status)
    bodies = [record.body for record in records]
    await shorter.create(run_id, bodies, summary=summary)
    return shorter


async def journal(store: Any, run_id: str = "r", *, seal: Seal | None = None) -> list[str]:
    """Return the entries of a run, each as a line of text."""
    entries = await (read_entries(store, run_id, seal) if seal else read_entries(store, run_id))
    return [line(entry, entries) for entry in entries]


def line(entry: Entry, entries: list[Entry]) -> str:
    """Return an entry as text, with the entries that a resume tries again."""
    text = _name(entry)
    retry = entry.retry if isinstance(entry, Finished) else ()
    if retry:
        found = [entries[n - 1] for first, last in retry for n in range(first, last + 1)]
        text += f" again: {', '.join(map(_name, found))}"
    return text


def _name(entry: Entry) -> str:
    match entry:
        case Started():
            return "started"
        case Resumed():
            return "resumed"
        case BeforeStep(step=path, attempt=attempt):
            return f"B {path}" if attempt == 1 else f"B{attempt} {path}"
        case Completed(step=path):
            return f"C {path}"
        case Failed(step=path):
            return f"F {path}"
        case Interrupted(step=path):
            if entry.cancelled:
                return f"X {path}"
            return f"I {path}" if entry.in_progress else "I"
        case TimerFired(path=path):
            return f"T {path}"
        case Local(path=path, end=end):
            return f"L {path}" if end == "ok" else f"L {path} {end}"
        case Value(path=path):
            return f"V {path}"
        case SetAside(path=path):
            return f"A {path}"
        case Waiting(path=path):
            return f"W {path}"
        case Signalled(path=path):
            return f"S {path}"
        case Published(path=path, key=key):
            return f"P {path or key}"
        case Suspended():
            return "suspended"
        case Paused():
            return "paused"
        case ChildStarted(path=path):
            return f"child {path}"
        case ChildEnded(path=path, status=status):
            return f"child {path} {status}"
        case CancelRequested():
            return "cancel"
        case Finished(status=status):
            return str(status)
