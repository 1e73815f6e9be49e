"""A store that is not open is opened for a run, and closed afterwards."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, par, workflow
from effectflow.checkpoint import StoreUnavailable, find_run, read_checkpoint
from effectflow.stores import FileStore, MemoryStore, SqliteStore
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, Broken, Crash, World
from tests.runs.journals import act, made_of

MAKE = {
    "sqlite": lambda folder: SqliteStore(folder / "runs.db"),
    "file": lambda folder: FileStore(folder / "runs"),
}
each_store = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())


@workflow
def checkout(_: object) -> Do[App, Broken, list[str]]:
    return [(yield from act("charge")), (yield from act("ship"))]


@each_store
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_script_needs_no_async_with(make: Any, backend: Any, tmp_path: Path) -> None:
    app = App(Checkpoints(make(tmp_path)), World(failing={"ship"}))
    assert isinstance(checkout.start(None, run_id="r").run_sync(app, backend=backend), Failure)
    app.world.recover()
    plan = checkout.plan("r").run_sync(app, backend=backend).unwrap()
    assert plan.start == ("ship",)
    resumed = checkout.resume("r").run_sync(app, backend=backend)
    assert resumed == Success(["charge", "ship"])
    assert app.world.done == ["charge", "ship", "ship"]


@pytest.mark.anyio
@each_store
async def test_the_store_is_closed_after_the_run(make: Any, tmp_path: Path) -> None:
    store = make(tmp_path)
    await checkout.start(None, run_id="r").run(App(Checkpoints(store)))
    with pytest.raises(StoreUnavailable, match="not open"):
        await find_run(store, "r")


@pytest.mark.anyio
@each_store
async def test_a_store_that_is_open_stays_open(make: Any, tmp_path: Path) -> None:
    async with make(tmp_path) as store:
        for run_id in ("a", "b"):
            await checkout.start(None, run_id=run_id).run(App(Checkpoints(store)))
        assert (await read_checkpoint(store, "a")).status == "completed"


@pytest.mark.anyio
@each_store
async def test_runs_that_overlap_share_one_opening(make: Any, tmp_path: Path) -> None:
    store = make(tmp_path)
    app = App(Checkpoints(store))
    results: list[Any] = []

    async def run(run_id: str) -> None:
        results.append(await checkout.start(None, run_id=run_id).run(app))

    async with anyio.create_task_group() as tasks:
        for run_id in "abcde":
            tasks.start_soon(run, run_id)
    assert results == [Success(["charge", "ship"])] * 5


class CountingStore(ForwardingStore):
    """Counts how often it is entered and left."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.entered = 0
        self.left = 0

    async def __aenter__(self) -> Self:
        self.entered += 1
        return await super().__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.left += 1
        await super().__aexit__(exc_type, exc, traceback)


@pytest.mark.anyio
@pytest.mark.parametrize("problem", ["none", "failure", "defect", "stop"])
async def test_a_store_is_exited_as_often_as_it_is_entered(problem: str) -> None:
    store = CountingStore()
    app = App(Checkpoints(store))
    if problem == "failure":
        app.world.failing.add("charge")
    elif problem == "defect":
        app.world.crashing.add("charge")
    with anyio.CancelScope() as scope:
        if problem == "stop":
            scope.cancel()
        if problem == "defect":
            with pytest.raises(Crash):
                await checkout.start(None).run(app)
        else:
            await checkout.start(None).run(app)
    assert store.entered == store.left >= 1


@pytest.mark.anyio
@each_store
async def test_nested_runs_use_the_open_store(make: Any, tmp_path: Path) -> None:
    both = made_of(lambda: par(checkout.call(None), checkout.call(None)))

    store = make(tmp_path)
    result = await both.start(None, run_id="r").run(App(Checkpoints(store)))
    assert result == Success((["charge", "ship"], ["charge", "ship"]))


@pytest.mark.anyio
async def test_a_store_that_cannot_be_opened_is_the_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    found = await checkout.start(None).run(
        App(Checkpoints(SqliteStore(tmp_path / "file" / "runs.db")))
    )
    assert isinstance(found.failure(), StoreUnavailable)
