"""Steps that ended although they were cancelled: what has ended is recorded, and not done again.

A call in a thread and an item of a worker process cannot always be stopped.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from returns.result import Success

from effectflow import (
    Do,
    Effect,
    Workflow,
    fail,
    from_blocking,
    par,
    par_all,
    pure,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import RunStatus, find_run, read_checkpoint
from effectflow.effects import from_async
from effectflow.graphs import StateGraph
from effectflow.machines import Moved, StateMachine, Transition
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore, SqliteStore
from tests.apps import App, Crash, app_on, both_backends, note
from tests.programs import PIPE, Program

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Call:
    """A call in a thread that lasts until it is told to end."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, app: App) -> int:
        self.has_begun.set()
        assert self.may_end.wait(60)
        return app.world.note("slow")

    async def begun(self) -> None:
        while not self.has_begun.is_set():
            await anyio.sleep(0.001)


def slow_step(call: Call) -> Any:
    @step
    def slow() -> Effect[App, str, int]:
        return from_blocking(call)

    @workflow
    def made(_: None) -> Do[App, Any, int]:
        return (yield from slow())

    return made


def slow_and_more(call: Call) -> Any:
    @step
    def slow() -> Effect[App, str, int]:
        return from_blocking(call).map(lambda value: value)

    @step(at_most_once=True)
    def after() -> Effect[App, Any, int]:
        return note("after")

    @workflow
    def made(_: None) -> Do[App, Any, int]:
        yield from slow()
        return (yield from after())

    return made


def slow_part(call: Call) -> Any:
    """The call is one of several branches within a step."""

    @step
    def slow() -> Effect[App, Any, int]:
        return par_all([from_blocking(call), pure(1)]).map(lambda values: values[0])

    @workflow
    def made(_: None) -> Do[App, Any, int]:
        return (yield from slow())

    return made


def slow_list(call: Call) -> Any:
    def slow(_: int) -> Effect[App, str, int]:
        return from_blocking(call)

    return Workflow.of_steps("list", [slow])


def slow_node(call: Call) -> Any:
    def slow(_: int) -> Effect[App, str, int]:
        return from_blocking(call)

    return StateGraph[Any, Any, int]("graph").node("slow", slow).entry("slow").exit("slow").build()


def slow_parallel_node(call: Call) -> Any:
    def slow(_: int) -> Effect[App, str, int]:
        return from_blocking(call)

    def fast(_: int) -> Effect[App, str, int]:
        return pure(1)

    graph = StateGraph[Any, Any, int]("graph")
    graph.parallel("both", {"slow": slow, "fast": fast}, merge=lambda _, ends: ends["slow"])
    return graph.entry("both").exit("both").build()


def slow_item(call: Call) -> Any:
    def slow(_: int) -> Effect[App, str, int]:
        return from_blocking(call)

    def total(values: list[int]) -> Effect[App, str, int]:
        return pure(sum(values))

    return MapReduce("job", items=lambda _: [1], map=slow, reduce=total, key=str, limit=1)


def slow_action(call: Call) -> Any:
    def act(_: str) -> Effect[App, str, Moved[str]]:
        return from_blocking(call).map(lambda _: Moved("b"))

    transitions = [Transition[Any, Any, Any]("go", "a", "b", action=act)]
    return StateMachine[Any, Any, Any]("m", initial="a", transitions=transitions, final={"b"})


def slow_child(call: Call) -> Any:
    inner = slow_step(call)

    @workflow
    def outer(_: None) -> Do[App, Any, int]:
        return (yield from inner.call(None))

    return outer


BUILDERS: list[Callable[[Call], Any]] = [
    slow_step,
    slow_list,
    slow_node,
    slow_parallel_node,
    slow_item,
    slow_action,
    slow_child,
]


def input_of(made: Any) -> Any:
    return None if isinstance(made, StateMachine) or made.name in ("made", "outer") else 1


async def cancel_natively(running: Effect[Any, Any, Any], app: App, call: Call) -> None:
    task = asyncio.create_task(running.run(app))
    await call.begun()
    task.cancel()
    await asyncio.sleep(0.01)
    call.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancel_by_scope(running: Effect[Any, Any, Any], app: App, call: Call) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run, app)
        await call.begun()
        tasks.cancel_scope.cancel()
        call.may_end.set()


@pytest.mark.parametrize("build", BUILDERS)
async def test_a_step_whose_task_was_cancelled_is_recorded(build: Callable[[Call], Any]) -> None:
    app, call = App(), Call()
    made = build(call)
    await cancel_natively(made.start(input_of(made), run_id="r"), app, call)
    assert (await read_checkpoint(app.checkpoints.store, "r")).status is RunStatus.INTERRUPTED
    assert isinstance(await made.resume("r").run(app), Success)
    assert app.world.done == ["slow"]


@both_backends
@pytest.mark.parametrize("build", BUILDERS)
async def test_a_step_whose_scope_was_cancelled_is_recorded(build: Callable[[Call], Any]) -> None:
    app, call = App(), Call()
    made = build(call)
    await cancel_by_scope(made.start(input_of(made), run_id="r"), app, call)
    assert isinstance(await made.resume("r").run(app), Success)
    assert app.world.done == ["slow"]


@pytest.mark.parametrize("cancel", [cancel_natively, cancel_by_scope])
async def test_the_next_step_does_not_begin(cancel: Callable[..., Any]) -> None:
    app, call = App(), Call()
    made = slow_and_more(call)
    await cancel(made.start(None, run_id="r"), app, call)
    assert app.world.done == ["slow"]
    # It is not even said to have begun: its outcome would be unknown.
    assert await made.resume("r").run(app) == Success(1)
    assert app.world.done == ["slow", "after"]


@pytest.mark.parametrize("cancel", [cancel_natively, cancel_by_scope])
async def test_a_step_that_has_not_ended_with_its_call_is_repeated(
    cancel: Callable[..., Any],
) -> None:
    app, call = App(), Call()
    made = slow_part(call)
    await cancel(made.start(None, run_id="r"), app, call)
    assert (await read_checkpoint(app.checkpoints.store, "r")).completed_steps == ()
    assert await made.resume("r").run(app) == Success(2)


async def test_a_branch_of_a_step_whose_own_task_was_cancelled_is_not_dropped() -> None:
    tasks: list[asyncio.Task[Any]] = []

    def then(_: None) -> Effect[Any, Any, int]:
        return from_blocking(call)

    async def note_task(_: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)

    @step
    def slow() -> Effect[App, Any, list[int]]:
        branch: Effect[App, Any, int] = from_async(note_task).and_then(then)
        return par_all([branch, sleep(0.01).map(lambda _: 2)])

    @workflow
    def made(_: None) -> Do[App, Any, list[int]]:
        return (yield from slow())

    app, call = App(), Call()
    task = asyncio.create_task(made.start(None, run_id="r").run(app))
    await call.begun()
    tasks[0].cancel()
    await asyncio.sleep(0.02)
    call.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await made.resume("r").run(app) == Success([2, 2])


@pytest.mark.parametrize("cancel", [cancel_natively, cancel_by_scope])
async def test_a_defect_of_a_cancelled_call_is_recorded(cancel: Callable[..., Any]) -> None:
    @step(at_most_once=True)
    def slow() -> Effect[App, str, int]:
        return from_blocking(call)

    @workflow
    def made(_: None) -> Do[App, Any, int]:
        return (yield from slow())

    app, call = App(), Call()
    app.world.crashing.add("slow#1")
    try:
        await cancel(made.start(None, run_id="r"), app, call)
    except* Crash:
        pass
    # Otherwise its outcome would be unknown.
    assert await made.resume("r").run(app) == Success(2)


@both_backends
@pytest.mark.parametrize("decided", ["race", "par", "timeout"])
async def test_a_step_that_ended_after_a_decision_cancelled_it_is_recorded(decided: str) -> None:
    @step
    def slow() -> Effect[App, str, int]:
        return from_blocking(call)

    async def end(_: object) -> None:
        await call.begun()
        call.may_end.set()

    @workflow
    def made(_: None) -> Do[App, Any, Any]:
        other = from_async(lambda _: call.begun())
        work: Effect[App, Any, Any]
        if decided == "race":
            work = race([slow(), other])
        elif decided == "par":
            work = par(slow(), other.and_then(lambda _: fail("stop")))
        else:
            work = slow().timeout(0.05)
        late = from_async(lambda _: to_thread.run_sync(let_end))
        return str((yield from par(work.result(), late)))

    def let_end() -> None:
        call.has_begun.wait()
        if not call.may_end.wait(0.2):
            call.may_end.set()

    app, call = app_on(MemoryStore()), Call()
    await made.start(None, run_id="r").run_or_raise(app)
    done = (await read_checkpoint(app.checkpoints.store, "r")).completed_steps
    assert [one.step.rpartition("/")[2] for one in done] == ["slow"]


async def test_outside_runs_the_cancellation_takes_effect_when_the_call_ends() -> None:
    app, call = App(), Call()
    running = from_blocking(call).and_then(lambda _: note("after"))
    await cancel_natively(running, app, call)
    assert app.world.done == ["slow"]


async def test_the_requests_for_cancellation_are_counted_once() -> None:
    """A framework that takes its own request back finds none left."""
    app, call = App(), Call()
    made = slow_step(call)

    async def until_timeout() -> str:
        try:
            async with limit:
                await made.start(None, run_id="r").run(app)
        except TimeoutError:
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0)
            return "timed out"
        return "in time"

    limit = asyncio.timeout(None)
    running = asyncio.create_task(until_timeout())
    await call.begun()
    limit.reschedule(0)
    while not running.cancelling():
        await asyncio.sleep(0)
    call.may_end.set()
    assert await running == "timed out"
    assert await made.resume("r").run(app) == Success(1)
    assert app.world.done == ["slow"]


PROGRAM = textwrap.dedent("""
    import asyncio, sys, time
    from dataclasses import dataclass
    from effectflow import Checkpoints, Do, Effect, from_blocking, step, workflow
    from effectflow.stores import SqliteStore

    @dataclass(frozen=True)
    class App:
        checkpoints: Checkpoints

    def work(_):
        print("working", flush=True)
        time.sleep(0.5)
        return 1

    @step
    def slow() -> Effect[App, str, int]:
        return from_blocking(work)

    @workflow
    def made(_: None) -> Do[App, str, int]:
        return (yield from slow())

    app = App(Checkpoints(SqliteStore(sys.argv[1])))
    run = made.start(None, run_id="r").run
    if sys.argv[2] == "asyncio":
        asyncio.run(run(app))
    else:
        import trio
        trio.run(run, app)
""")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_step_during_ctrl_c_is_recorded(tmp_path: Path, backend: str) -> None:
    path = tmp_path / "runs.db"
    command = ["-c", PROGRAM, str(path), backend]
    with Program(command, stdout=PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
    async with SqliteStore(path) as store:
        checkpoint = await read_checkpoint(store, "r")
        info = await find_run(store, "r")
    assert [done.step for done in checkpoint.completed_steps] == ["slow"]
    assert info is not None
    assert info.lease is None
