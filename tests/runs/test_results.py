"""The result of a run that is read later: its output, its typed error, or why it has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Client, Do, Effect, effect, fail, pure, step, workflow
from effectflow.checkpoint import (
    NotSerializable,
    RecordedDefect,
    RunCancelled,
    RunConflict,
    RunNotEnded,
    RunNotFound,
    RunStatus,
    read_entries,
)
from effectflow.effects import from_async
from effectflow.machines import StateMachine, Transition
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore, SqliteStore
from tests.apps import App, Broken, Crash, app_on, cut_off, note

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class OnlyCheckpoints:
    """An environment that no step of the workflows here could run in."""

    checkpoints: Checkpoints


class Refused(Exception):
    """A typed failure with attributes."""

    def __init__(self, item: str, *, code: int) -> None:
        super().__init__(item)
        self.item = item
        self.code = code


class Undeclared(Exception):
    """A failure whose class no annotation declares."""


@step
def act(name: str) -> Effect[App, Broken, str]:
    return note(name).map(lambda _: f"{name} done")


@workflow
def acting(name: str) -> Do[App, Broken, str]:
    return (yield from act(name))


@workflow
def refusing(item: str) -> Do[App, Refused, str]:
    yield from note(f"refuse {item}").fallback(0)
    return (yield from fail(Refused(item, code=7)))


@workflow
def failing_with_text(name: str) -> Effect[App, str, str]:
    return fail(f"no {name}")


async def test_the_output_of_a_complete_run_is_read_without_running_anything(
    store: MemoryStore,
) -> None:
    app = app_on(store)
    await acting.start("a", run_id="r").run(app)
    before = await read_entries(store, "r")

    assert await acting.result("r").run(OnlyCheckpoints(app.checkpoints)) == Success("a done")
    assert await read_entries(store, "r") == before
    assert app.world.done == ["a"]


async def test_the_typed_error_of_a_failed_run_is_rebuilt(store: MemoryStore) -> None:
    app = app_on(store)
    await refusing.start("cap", run_id="r").run(app)
    app.world.done.clear()

    error = (await refusing.result("r").run(OnlyCheckpoints(app.checkpoints))).failure()

    assert isinstance(error, Refused)
    assert (error.args, error.item, error.code) == (("cap",), "cap", 7)
    assert error.__notes__ == ["in run 'r'"]
    assert app.world.done == []


async def test_an_error_that_is_not_an_exception_is_restored_unchanged(store: MemoryStore) -> None:
    app = app_on(store)
    await failing_with_text.start("tea", run_id="r").run(app)

    assert await failing_with_text.result("r").run(app) == Failure("no tea")
    traced = (await failing_with_text.result("r").traced().run(app)).failure()
    assert traced.trail == ("in run 'r'",)


async def test_an_error_that_cannot_be_rebuilt_is_told(store: MemoryStore) -> None:
    @workflow
    def undeclared(name: str) -> Effect[App, Any, str]:
        return fail(Undeclared(name))

    app = app_on(store)
    await undeclared.start("a", run_id="r").run(app)

    error = (await undeclared.result("r").run(app)).failure()

    assert isinstance(error, NotSerializable)
    assert "run 'r': it failed with tests.runs.test_results.Undeclared: a" in str(error)


async def test_the_defect_of_a_failed_run_is_raised(store: MemoryStore) -> None:
    app = app_on(store)
    app.world.crashing.add("a")
    with pytest.raises(Crash):
        await acting.start("a", run_id="r").run(app)

    with pytest.raises(RecordedDefect, match="Crash: a#1") as raised:
        await acting.result("r").run(app)
    assert raised.value.__notes__ == ["in run 'r'"]
    assert "in note" in str(raised.value.record.traceback)


async def test_a_run_that_has_not_ended_names_its_status(store: MemoryStore) -> None:
    @workflow
    def slow(name: str) -> Do[App, Broken, str]:
        yield from act(name)
        return (yield from from_async(lambda _: anyio.sleep(60)).map(lambda _: name))

    app = app_on(store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.start("a", run_id="r").run, app)
        with anyio.fail_after(5):
            while not app.world.done:
                await anyio.sleep(0.001)
        error = (await slow.result("r").run(app)).failure()
        assert isinstance(error, RunNotEnded)
        assert error.status == RunStatus.RUNNING
        assert "run 'r' has not ended: it is running" in str(error)
        tasks.cancel_scope.cancel()

    stopped = (await slow.result("r").run(app)).failure()
    assert isinstance(stopped, RunNotEnded)
    assert stopped.status == RunStatus.INTERRUPTED


async def test_a_cancelled_run_has_no_result(store: MemoryStore) -> None:
    @step
    def endless(name: str) -> Effect[App, Broken, str]:
        return from_async(lambda _: anyio.sleep(60)).map(lambda _: name)

    @workflow
    def waiting(name: str) -> Effect[App, Broken, str]:
        return endless(name)

    app = app_on(store)
    await cut_off(waiting.start("a", run_id="r"), app)
    await Client(app.checkpoints).handle(waiting, "r").cancel()
    await waiting.resume("r").run(app)

    assert isinstance((await waiting.result("r").run(app)).failure(), RunCancelled)


async def test_an_unknown_run_and_a_run_of_another_workflow_are_rejected(
    store: MemoryStore,
) -> None:
    app = app_on(store)
    await acting.start("a", run_id="run-1").run(app)

    unknown = (await acting.result("run-2").run(app)).failure()
    assert isinstance(unknown, RunNotFound)
    assert unknown.nearest == ("run-1",)
    assert isinstance((await refusing.result("run-1").run(app)).failure(), RunConflict)


async def test_the_machine_of_another_run_is_read(store: MemoryStore) -> None:
    lamp: StateMachine[App, Broken, str] = StateMachine(
        "lamp", initial="off", transitions=[Transition("switch", "off", "on")], final={"on"}
    )
    app = app_on(store)
    machine = await lamp.start(run_id="r").run_or_raise(app)

    assert await lamp.result("r").run_or_raise(app) == machine


async def test_the_earlier_result_is_valid_while_dead_letters_are_retried(
    store: MemoryStore,
) -> None:
    @effect(errors=Broken)
    def count(app: App, item: str) -> int:
        return app.world.note(item)

    job = MapReduce(
        "job",
        items=list[str],
        map=count,
        reduce=lambda values: pure(sum(values)),
        key=str,
        limit=1,
        on_item_failure="dead_letter",
    )
    app = app_on(store, failing=["b"])
    result = await job.start(["a", "b"], run_id="r").run_or_raise(app)
    app.world.failing.clear()
    app.world.crashing.add("b")
    with pytest.raises(Crash):
        await job.retry_dead_letters("r").run(app)

    assert repr(await job.result("r").run_or_raise(app)) == repr(result)


async def test_a_step_can_read_the_result_of_another_run_and_handle_its_absence(
    store: MemoryStore,
) -> None:
    @step
    def look(run_id: str) -> Effect[App, Broken, str]:
        read = acting.result(run_id)
        return (
            read.recover(RunNotFound, lambda _: pure("none yet"))
            .recover(RunNotEnded, lambda _: pure("not yet"))
            .map_err(lambda error: error if isinstance(error, Broken) else Broken(str(error)))
        )

    @workflow
    def reading(_: None) -> Do[App, Broken, list[str]]:
        return [(yield from look("nothing")), (yield from look("other"))]

    app = app_on(store)
    await acting.start("a", run_id="other").run(app)

    assert await reading.start(None, run_id="r").run(app) == Success(["none yet", "a done"])


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_plain_script_reads_a_result(tmp_path: Any, backend: Literal["asyncio", "trio"]) -> None:
    app = app_on(SqliteStore(tmp_path / "runs.db"))
    refusing.start("cap", run_id="r").run_sync(app, backend=backend)

    script = OnlyCheckpoints(Checkpoints(SqliteStore(tmp_path / "runs.db")))
    error = refusing.result("r").run_sync(script, backend=backend).failure()
    assert isinstance(error, Refused)
    assert error.code == 7


async def test_a_failure_names_the_run_whose_id_was_made_up(store: MemoryStore) -> None:
    app = app_on(store, failing=["a"])

    error = (await acting.start("a").run(app)).failure()
    traced = (await acting.start("a").traced().run(app)).failure()

    [newer, older] = [info.run_id for info in await store.find()]
    assert isinstance(error, Broken)
    assert error.__notes__ == [f"in run {older!r}"] or error.__notes__ == [f"in run {newer!r}"]
    assert traced.trail in ((f"in run {older!r}",), (f"in run {newer!r}",))
    assert error.__notes__ != list(traced.trail)


async def test_a_defect_and_an_error_that_is_not_an_exception_name_the_run(
    store: MemoryStore,
) -> None:
    @workflow
    def broken(name: str) -> Effect[App, Broken, str]:
        raise LookupError(name)

    app = app_on(store)
    with pytest.raises(LookupError) as raised:
        await broken.start("a").run(app)
    [info] = await store.find()
    assert raised.value.__notes__ == [f"in run {info.run_id!r}"]

    await store.delete(info.run_id)
    with pytest.raises(Exception, match="no tea") as wrapped:
        await failing_with_text.start("tea").run_or_raise(app)
    [info] = await store.find()
    assert wrapped.value.__notes__ == [f"in run {info.run_id!r}"]


async def test_a_checkpoint_error_of_a_run_names_it(store: MemoryStore) -> None:
    @workflow
    def unsaved(_: str) -> Effect[App, Broken, object]:
        return pure(object())

    error = (await unsaved.start("a").run(app_on(store))).failure()
    [info] = await store.find()
    assert isinstance(error, NotSerializable)
    assert error.__notes__ == [f"in run {info.run_id!r}"]


async def test_start_of_a_failed_run_continues_with_it(store: MemoryStore) -> None:
    app = app_on(store, failing=["a"])
    await acting.start("a", run_id="r").run(app)
    app.world.recover()

    assert await acting.start("a", run_id="r").run(app) == Success("a done")
    assert app.world.done == ["a", "a"]


async def test_start_gives_the_recorded_failure_if_it_is_not_to_be_retried(
    store: MemoryStore,
) -> None:
    app = app_on(store, failing=["a"])
    await acting.start("a", run_id="r", retry_failed=False).run(app)
    app.world.recover()
    before = await read_entries(store, "r")

    error = (await acting.start("a", run_id="r", retry_failed=False).run(app)).failure()

    assert isinstance(error, Broken)
    assert error.args == ("a#1",)
    assert app.world.done == ["a"]
    assert await read_entries(store, "r") == before
    assert await acting.start("a", run_id="r").run(app) == Success("a done")
    assert await acting.start("a", run_id="r", retry_failed=False).run(app) == Success("a done")


async def test_start_without_retries_rejects_another_input(store: MemoryStore) -> None:
    app = app_on(store, failing=["a"])
    await acting.start("a", run_id="r").run(app)

    error = (await acting.start("b", run_id="r", retry_failed=False).run(app)).failure()
    assert isinstance(error, RunConflict)


async def test_start_without_retries_raises_a_recorded_defect(store: MemoryStore) -> None:
    app = app_on(store)
    app.world.crashing.add("a")
    with pytest.raises(Crash):
        await acting.start("a", run_id="r").run(app)
    app.world.recover()

    with pytest.raises(RecordedDefect, match="Crash: a#1"):
        await acting.start("a", run_id="r", retry_failed=False).run(app)


async def test_start_without_retries_continues_with_a_run_that_was_interrupted(
    store: MemoryStore,
) -> None:
    @effect
    async def hold(app: App) -> None:
        await anyio.sleep(60 if app.world.is_broken else 0)

    @workflow
    def slow(name: str) -> Do[App, Broken, str]:
        yield from hold()
        return (yield from act(name))

    app = app_on(store, failing=["other"])
    await cut_off(slow.start("a", run_id="r"), app)
    app.world.recover()

    assert await slow.start("a", run_id="r", retry_failed=False).run(app) == Success("a done")
