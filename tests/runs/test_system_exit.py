"""SystemExit and KeyboardInterrupt raised in a run: they end the process as themselves.

The finalizers run first, and the run is left interrupted, without a lease.
"""

from __future__ import annotations

import signal
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Never

import anyio
import pytest

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    bracket,
    from_blocking,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import RunStatus, find_run
from effectflow.effects import (
    emit,
    first_success,
    from_async,
    from_fn,
    par_reduce,
    suspend,
    traverse,
)
from effectflow.stores import MemoryStore, SqliteStore
from tests.apps import App
from tests.programs import ran
from tests.service.conftest import Service
from tests.sweeps import in_pairs, in_turn

AnyEffect = Effect[Any, Any, Any]

EXITS: list[type[BaseException]] = [SystemExit, KeyboardInterrupt]


def leaving(kind: type[BaseException]) -> dict[str, Callable[[], AnyEffect]]:
    """Return effects, each of which raises `kind(3)` at another place."""

    def leave(_: object = None) -> Any:
        raise kind(3)

    async def leave_later(_: object) -> None:
        await anyio.sleep(0)
        leave()

    def items() -> Iterator[int]:
        yield 1
        leave()

    async def async_items() -> AsyncIterator[int]:
        yield 1
        leave()

    @step
    def now(_: int) -> AnyEffect:
        return from_fn(leave)

    @step
    def later(_: int) -> AnyEffect:
        return from_async(leave_later)

    @step
    def in_a_thread() -> AnyEffect:
        return from_blocking(leave)

    @step(retry=RetryPolicy.constant(0.01).with_max_retries(2), timeout=2)
    def again() -> AnyEffect:
        return from_fn(leave)

    @workflow
    def inner(_: int) -> Do[Any, Any, Any]:
        return (yield from now(1))

    return {
        "body": leave,
        "step": lambda: now(1),
        "asynchronous step": lambda: later(1),
        "step in a thread": in_a_thread,
        "step that retries": again,
        "timeout": lambda: later(1).timeout(5),
        "par": lambda: par(later(1), sleep(1)),
        "par in par": lambda: par(par(later(1)), sleep(1)),
        "par_all": lambda: par_all([later(1), sleep(1)]),
        "par_traverse": lambda: par_traverse([1, 2], later, limit=1),
        "par_reduce": lambda: par_reduce([1, 2], later, lambda values: pure(values[0]), limit=2),
        "race": lambda: race([later(1), sleep(1)]),
        "first_success": lambda: first_success([later(1), sleep(1)]),
        "use": lambda: bracket(pure(1), lambda _: pure(2), lambda _: later(1)),
        "listener": lambda: emit(1).into_sink(leave),
        "items": lambda: par_traverse(items(), pure),
        "items, limit": lambda: par_traverse(items(), pure, limit=1),
        "items beside another": lambda: par(par_traverse(items(), pure), sleep(1)),
        "items of traverse": lambda: traverse(items(), pure),
        "items of par_reduce": lambda: par_reduce(items(), pure, lambda _: pure(1), limit=1),
        "async items": lambda: par_traverse(async_items(), pure),
        "async items, limit": lambda: par_traverse(async_items(), pure, limit=1),
        "the function of an item": lambda: par_traverse([1], leave),
        "a key": lambda: par_traverse([1], pure, key=leave),
        "effects": lambda: par_all(map(leave, [1])),
        "another workflow": lambda: inner.call(1),
    }


@in_pairs(place=leaving(SystemExit), kind=EXITS, durable=[False, True], backend=["asyncio", "trio"])
def test_an_exit_is_raised_unchanged_after_the_finalizers(
    place: str, kind: type[BaseException], durable: bool, backend: Any
) -> None:
    app = App()
    release = from_fn(lambda _: app.world.note("released"))

    @workflow
    def made(_: None) -> Do[App, Any, Any]:
        return (yield from using)

    using = bracket(pure(1), lambda _: release, lambda _: suspend(leaving(kind)[place]))
    running: AnyEffect = made.start(None, run_id="r") if durable else using
    with pytest.raises(kind) as left:
        running.run_sync(app, backend=backend)
    assert left.value.args == (3,)
    assert app.world.done == ["released"]

    async def look() -> None:
        info = await find_run(app.checkpoints.store, "r")
        assert info is not None
        assert (info.summary.status, info.lease) == (RunStatus.INTERRUPTED, None)

    if durable:
        anyio.run(look)


PROGRAM = textwrap.dedent("""
    import sys
    from dataclasses import dataclass
    from effectflow import *
    from effectflow.effects import from_fn
    from effectflow.stores import MemoryStore, SqliteStore

    backend, leave, path = sys.argv[1:]

    @dataclass(frozen=True)
    class App:
        checkpoints: Checkpoints

    def end(_):
        raise SystemExit(3) if leave == "SystemExit" else KeyboardInterrupt

    @step
    def ending() -> Effect[App, str, None]:
        return from_fn(end)

    @workflow
    def inner(_: None) -> Do[App, str, None]:
        yield from ending()

    @workflow
    def made(_: None) -> Do[App, str, None]:
        release = from_fn(lambda _: print("released", flush=True))
        yield from bracket(pure(1), lambda _: release, lambda _: par(inner.call(None), sleep(5)))

    app = App(Checkpoints(SqliteStore(path)))
    made.start(None, run_id="r").run_sync(app, backend=backend)
""")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@in_turn(backend=["asyncio", "trio"], leave=["SystemExit", "KeyboardInterrupt"])
async def test_a_process_ends_with_the_status_of_the_exit(
    tmp_path: Path, backend: str, leave: str
) -> None:
    status = 3 if leave == "SystemExit" else -signal.SIGINT
    path = tmp_path / "runs.db"
    command = ["-c", PROGRAM, backend, leave, str(path)]
    ended = ran(command)
    assert (ended.returncode, ended.stdout) == (status, "released\n")
    assert "ExceptionGroup" not in ended.stderr
    if leave == "SystemExit":
        assert ended.stderr == ""
    async with SqliteStore(path) as store:
        [info] = await store.find()
    assert (info.summary.status, info.lease) == (RunStatus.INTERRUPTED, None)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_in_a_finalizer_ends_the_process_while_a_worker_suspends_the_run(
    backend: str,
) -> None:
    store = MemoryStore()

    def interrupt(_: object) -> Never:
        raise KeyboardInterrupt

    @workflow
    def resting(_: None) -> Do[App, Never, None]:
        yield from bracket(pure(1), interrupt, lambda _: sleep(3600))

    async def work() -> None:
        service = Service(store)
        async with service.worker(resting, suspend_after=0) as worker:
            await worker.client.submit(resting, run_id="r")
            await anyio.sleep(5)

    # Trio puts what a task raises into a group.
    expected = KeyboardInterrupt if backend == "asyncio" else BaseExceptionGroup
    with pytest.raises(expected):
        anyio.run(work, backend=backend)
    [info] = anyio.run(store.find)
    assert (info.summary.status, info.lease) == (RunStatus.SUSPENDED, None)
