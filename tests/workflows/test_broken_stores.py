"""A store that raises what no store should: the run still ends as one that could not be saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Never

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, Effect, fail, from_async, pure, step, workflow
from effectflow.checkpoint import (
    DefinitionChanged,
    Lease,
    RunQuery,
    RunStatus,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.service import Client
from effectflow.stores import MemoryStore
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App

pytestmark = pytest.mark.anyio


class NoRenewing(ForwardingStore):
    """It never renews a lease. `asked` is how often it should have."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.asked = 0

    def renew(self, lease: Lease, *, seconds: float) -> Never:
        self.asked += 1
        raise OSError("the socket is gone")

    async def wait_until_asked_twice(self) -> None:
        while self.asked < 2:
            await anyio.sleep(0.01)


async def test_a_lease_that_is_not_renewed_does_not_end_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with NoRenewing() as store:

        @step
        def wait() -> Effect[App, str, None]:
            return from_async(lambda _: store.wait_until_asked_twice())

        @workflow
        def waiting(_: None) -> Do[App, str, str]:
            yield from wait()
            return "done"

        app = App(Checkpoints(store, lease_seconds=0.3))
        assert await waiting.start(None, run_id="r").run(app) == Success("done")

    assert "the lease of run 'r' was not renewed: OSError('the socket is gone')" in caplog.text


class NoReleasing(ForwardingStore):
    """It makes a number of appends, and releases nothing."""

    def __init__(self, appends: int) -> None:
        super().__init__(MemoryStore())
        self.appends = appends

    async def append(self, lease: Lease, bodies: Sequence[bytes], **options: Any) -> None:
        if self.appends == 0:
            raise OSError("the disk is full")
        self.appends -= 1
        await super().append(lease, bodies, **options)

    async def release(self, lease: Lease) -> Never:
        raise OSError("the socket is gone")


@step
def act(is_well: bool) -> Effect[App, str, str]:
    return pure("well") if is_well else fail("badly")


@workflow
def acting(is_well: bool) -> Do[App, str, str]:
    return (yield from act(is_well))


async def test_a_lease_that_is_not_released_does_not_hide_how_the_run_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with NoReleasing(appends=2) as store:
        ended = await acting.start(True, run_id="r").run(App(Checkpoints(store)))

        assert isinstance(ended.failure(), SaveFailed)
        assert "the disk is full" in str(ended.failure())
        assert "the lease of run 'r' was not released: OSError(" in caplog.text

    async with NoReleasing(appends=9) as store:
        assert await acting.start(False, run_id="r").run(App(Checkpoints(store))) == Failure(
            "badly"
        )
        info = await store.info("r")
        assert info is not None
        assert info.summary.status is RunStatus.FAILED


class NoDeleting(ForwardingStore):
    """It keeps every run."""

    async def delete(self, run_id: str, **options: Any) -> Never:
        raise OSError("the socket is gone")


async def test_a_failed_deletion_does_not_change_how_the_run_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with NoDeleting(MemoryStore()) as store:
        app = App(Checkpoints(store, preserve=False))
        assert await acting.start(True, run_id="r").run(app) == Success("well")

    assert "run 'r' was not deleted: OSError('the socket is gone')" in caplog.text


@workflow(name="acting", version="2")
def acting_otherwise(is_well: bool) -> Do[App, str, str]:
    return (yield from act(is_well))


async def test_a_changed_workflow_is_rejected_also_by_a_store_that_releases_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with NoReleasing(appends=9) as store:
        app = App(Checkpoints(store))
        await acting.start(False, run_id="r").run(app)
        changed = await acting_otherwise.resume("r").run(app)

    assert isinstance(changed.failure(), DefinitionChanged)
    assert "run 'r' was not released: OSError('the socket is gone')" in caplog.text


class NoFinding(ForwardingStore):
    """It raises an error that no store should raise when it is asked for runs."""

    async def find(self, query: RunQuery = RunQuery()) -> Never:
        raise OSError("the socket is gone")


async def test_an_error_of_a_search_names_the_store_and_no_run() -> None:
    client = Client(Checkpoints(NoFinding(MemoryStore())))

    with pytest.raises(StoreUnavailable) as caught:
        await client.find()

    assert str(caught.value).endswith(": it raised OSError('the socket is gone')")
