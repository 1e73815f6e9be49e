"""Run drawn programs through drawn faults, for as long as you like.

    python -m tests.campaign --seconds 600
    python -m tests.campaign --seed 7 --scenario 123
    python -m tests.campaign --stores postgres,redis

Each scenario draws a program, a store, a policy and some lives that end badly: the process dies at an
append, the store fails, another owner takes over, or the run is cancelled from outside. Then the program
continues without faults. It must end as it does without any, it must not repeat a step that had ended for
good, and its journal must be whole. A failing scenario prints the command that repeats it.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Annotated, Any, Literal

import anyio
import anyio.lowlevel
import typer

from effectflow import Checkpoints
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointPolicy,
    CheckpointStore,
    ChildStarted,
    Completed,
    Entry,
    Failed,
    Finished,
    RunBusy,
    RunStatus,
    Seal,
    read_entries,
    verify_run,
)
from effectflow.effects import SystemClock
from effectflow.effects.event_loop import running_backend
from effectflow.stores import FileStore, MemoryStore, PostgresStore, RedisStore, SqliteStore
from effectflow.testing import (
    Busy,
    CrashPoint,
    Fault,
    FaultyStore,
    SaveFails,
    TakenOver,
    Unavailable,
)
from tests.runs.journals import AnyWorkflow, journal
from tests.runs.test_drawn_programs import check_nothing_repeated, ending
from tests.runs.trees import (
    Tree,
    TreeApp,
    TreeWorld,
    end_of,
    in_all_runs,
    random_tree,
    workflow_of,
)
from tests.stores.servers import PostgresServer, RedisServer

Backend = Literal["asyncio", "trio"]


@dataclass(frozen=True)
class Life:
    """One life of a process.

    Attributes:
        faults: what fails in it.
        cancelled_after: the turns of the event loop after which it is cancelled; None if it is not.
        is_native: whether asyncio itself cancels it.
    """

    faults: tuple[Fault, ...] = ()
    cancelled_after: int | None = None
    is_native: bool = False


@dataclass(frozen=True)
class Scenario:
    """A program, where it is recorded, and the lives that end badly."""

    tree: Tree
    backend: Backend
    store: str
    options: dict[str, Any]
    lives: tuple[Life, ...]

    def checkpoints(self, store: CheckpointStore) -> Checkpoints:
        return Checkpoints(store, **self.options)


class HurriedClock(SystemClock):
    """Waits a hundredth of the time, because virtual time does not wait for stores on disk."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 100)

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        return super().move_on_after(seconds / 100)


def draw(random: Random, stores: Sequence[str]) -> Scenario:
    tree = random_tree(random, leaves=random.randint(1, 10))
    while end_of(tree) in (None, "hang"):
        tree = random_tree(random, leaves=random.randint(1, 10))
    backend: Backend = random.choice(["asyncio", "trio"])
    options = {
        "lease_seconds": 3.0,
        "format": random.choice(["json", "cbor"]),
        "key": random.choice([None, bytes(32)]),
        "on_save_error": random.choice(["fail", "warn"]),
        "policy": CheckpointPolicy(every_steps=random.choice([1, 1, 2, 5])),
    }
    lives = tuple(draw_life(random) for _ in range(random.randint(1, 4)))
    return Scenario(tree, backend, random.choice(stores), options, lives)


def draw_life(random: Random) -> Life:
    call = random.randint(1, 12)
    fault: Fault | None = random.choice(
        [
            None,
            CrashPoint(call, is_durable=random.random() < 0.5),
            CrashPoint(call, is_durable=random.random() < 0.5),
            SaveFails(call, is_durable=random.random() < 0.5),
            TakenOver(call),
            Busy(1),
            Unavailable(random.choice(["claim", "append", "read", "find", "release"]), call),
        ]
    )
    cancelled = random.randint(0, 60) if fault is None or random.random() < 0.2 else None
    return Life(() if fault is None else (fault,), cancelled, random.random() < 0.5)


class Stores:
    """Opens an empty store of each kind. Servers are started once."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._addresses: dict[str, str] = {}

    def new(self, kind: str, folder: Path) -> CheckpointStore:
        match kind:
            case "memory":
                return MemoryStore()
            case "sqlite":
                return SqliteStore(folder / "runs.db")
            case "file":
                return FileStore(folder / "runs")
            case "postgres":
                return PostgresStore(self._address(kind), schema=folder.name)
            case "redis":
                return RedisStore(self._address(kind), prefix=folder.name)
            case _:
                raise typer.BadParameter(f"no store is called {kind!r}")

    def _address(self, kind: str) -> str:
        if kind not in self._addresses:
            if kind == "postgres":
                address = self._stack.enter_context(PostgresServer.with_own_data()).url
            else:
                folder = self._stack.enter_context(tempfile.TemporaryDirectory())
                address = self._stack.enter_context(RedisServer(Path(folder))).url
            self._addresses[kind] = address
        return self._addresses[kind]


async def play(scenario: Scenario, new_store: Callable[[], CheckpointStore]) -> None:
    """Raise AssertionError if the run of a scenario loses or repeats something."""
    made, seal = workflow_of(scenario.tree), scenario.checkpoints(MemoryStore()).seal
    expected = await ending(
        made.start(None, run_id="r"), TreeApp(Checkpoints(MemoryStore())), HurriedClock()
    )
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(new_store())
        worlds: list[TreeWorld] = []
        for life in scenario.lives:
            await check_life(made, scenario, life, store, worlds, expected)
        result = await check_life(made, scenario, Life(), store, worlds, expected)
        shown = await journals(store, seal)
        assert result == expected, f"{result}, not {expected}:\n{shown}"
        for run in await store.find():
            verified = await verify_run(store, run.run_id, seal)
            assert verified.problem is None, f"{verified}:\n{shown}"


async def check_life(
    made: AnyWorkflow,
    scenario: Scenario,
    life: Life,
    store: CheckpointStore,
    worlds: list[TreeWorld],
    expected: str,
) -> str | None:
    """Run one life. Return how the run ended in it, or None if something cut it off."""
    seal = scenario.checkpoints(store).seal
    before: dict[str, list[Entry]] = {}
    for run in await store.find():
        await wait_until_free(store, run.run_id)
        before[run.run_id] = entries = await read_entries(store, run.run_id, seal)
        for entry in entries:
            if isinstance(entry, ChildStarted) and entry.run_id not in before:
                # It may have a lease, and no entry yet.
                await wait_until_free(store, entry.run_id)
    faulty, world = FaultyStore(store, life.faults), TreeWorld()
    worlds.append(world)
    app = TreeApp(scenario.checkpoints(faulty), world)
    result: str | None = None
    with faulty.life():
        result = await cancelled_after(
            life, lambda: ending(made.start(None, run_id="r"), app, HurriedClock(), deadline=500)
        )
    shown = f"{result} in {life}:\n{await journals(store, seal)}"
    last = before["r"][-1] if "r" in before else None
    if isinstance(last, Finished) and last.status is RunStatus.COMPLETED:
        assert not world.begun, shown
    for run_id, entries in before.items():
        check_nothing_repeated(with_run(run_id, entries), world, worlds, shown)
    assert result in (None, expected) or result.startswith("CheckpointError"), shown
    return result


async def journals(store: CheckpointStore, seal: Seal) -> str:
    """Return the journals of all runs as text."""
    lines: list[str] = []
    for run in sorted(await store.find(), key=lambda run: run.run_id):
        lines += [f"run {run.run_id}:", *await journal(store, run.run_id, seal=seal)]
    return "\n".join(lines)


def with_run(run_id: str, entries: list[Entry]) -> list[Entry]:
    """Return the entries with paths that no step of another run has."""
    return [
        replace(entry, step=in_all_runs(run_id, entry.step))
        if isinstance(entry, BeforeStep | Completed | Failed)
        else entry
        for entry in entries
    ]


async def wait_until_free(store: CheckpointStore, run_id: str) -> None:
    """Wait for the end of the lease of a life whose store failed to release it."""
    with anyio.fail_after(30):
        while True:
            with suppress(RunBusy):
                taken = await store.claim(run_id, owner="the campaign", seconds=1)
                await store.release(taken.lease)
                return
            await anyio.sleep(0.1)


async def cancelled_after(life: Life, run: Callable[[], Coroutine[Any, Any, str]]) -> str | None:
    """Run it, and cancel it after some turns of the event loop. Return None if that cut it off."""
    turns = life.cancelled_after
    if turns is None:
        return await run()
    if life.is_native and running_backend() == "asyncio":
        task = asyncio.create_task(run())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            return await task
        return None
    result: str | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_after, turns, tasks.cancel_scope)
        result = await run()
        tasks.cancel_scope.cancel()
    return result


async def cancel_after(turns: int, scope: anyio.CancelScope) -> None:
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


def run_one(seed: int, number: int, kinds: str, stores: Stores) -> None:
    scenario = draw(Random(f"{seed}/{number}"), kinds.split(","))
    # The thread that renews leases may still hold a lock file.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            new_store = partial(stores.new, scenario.store, Path(folder))
            anyio.run(play, scenario, new_store, backend=scenario.backend)
        except BaseException:
            typer.echo(
                f"{scenario}\n\nrepeat it: python -m tests.campaign --stores {kinds} --seed {seed} "
                f"--scenario {number}"
            )
            raise


def main(
    seconds: Annotated[float, typer.Option(help="How long to draw scenarios.")] = 60,
    seed: Annotated[int | None, typer.Option(help="The seed of an earlier campaign.")] = None,
    scenario: Annotated[int | None, typer.Option(help="The only scenario to run.")] = None,
    stores: Annotated[
        str, typer.Option(help="Some of memory, sqlite, file, postgres and redis.")
    ] = "memory,sqlite,file",
) -> None:
    """Run drawn programs through drawn faults."""
    logging.disable(logging.CRITICAL)
    chosen = SystemRandom().randrange(10**9) if seed is None else seed
    typer.echo(f"seed {chosen}")
    with ExitStack() as stack:
        opened = Stores(stack)
        if scenario is not None:
            run_one(chosen, scenario, stores, opened)
            return
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            run_one(chosen, number, stores, opened)
            number += 1
        typer.echo(f"{number} scenarios")


if __name__ == "__main__":
    typer.run(main)
