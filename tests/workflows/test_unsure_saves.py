"""A save that failed may have taken effect, and another process may have driven the run since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, pure, step, workflow
from effectflow.checkpoint import (
    CheckpointStore,
    Completed,
    Lease,
    LeaseLost,
    RunStatus,
    StoreUnavailable,
    read_entries,
    verify_run,
)
from effectflow.stores import MemoryStore
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App

pytestmark = pytest.mark.anyio


@step
def count(number: int) -> Effect[App, str, int]:
    return pure(number)


@workflow
def counting(last: int) -> Do[App, str, int]:
    for number in range(last):
        yield from count(number)
    return last


class CutOff(ForwardingStore):
    """The third append gets no answer, and the lease expires before the server is there again.

    Another process has taken the run up by then, and was told to stop: after this many appends.
    """

    def __init__(self, store: CheckpointStore, *, is_written: bool, appends: int) -> None:
        super().__init__(store)
        self.is_written = is_written
        self.of_the_other = appends
        self.appends = 0

    async def append(self, lease: Lease, bodies: Sequence[bytes], **options: Any) -> None:
        self.appends += 1
        if self.appends != 3:
            await super().append(lease, bodies, **options)
            return
        if self.is_written:
            await super().append(lease, bodies, **options)
        await self.store.release(lease)
        await stopped_after(self.of_the_other, self.store)
        raise StoreUnavailable("the server", "no answer")


async def stopped_after(appends: int, store: CheckpointStore) -> None:
    class Stopping(ForwardingStore):
        count = 0

        async def append(self, lease: Lease, bodies: Sequence[bytes], **options: Any) -> None:
            await super().append(lease, bodies, **options)
            self.count += 1
            if self.count == appends:
                scope.cancel()
                await anyio.lowlevel.checkpoint()

    with anyio.CancelScope() as scope:
        await counting.resume("r").run(App(Checkpoints(Stopping(store))))


@pytest.mark.parametrize("appends", [1, 2, 3])
@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("on_save_error", ["fail", "warn"])
async def test_an_append_of_another_process_is_not_mistaken_for_the_own_one(
    on_save_error: Literal["fail", "warn"], is_written: bool, appends: int
) -> None:
    async with MemoryStore() as store:
        cut_off = CutOff(store, is_written=is_written, appends=appends)
        app = App(Checkpoints(cut_off, on_save_error=on_save_error))

        ended = await counting.start(4, run_id="r").run(app)

        error = ended.failure()
        if on_save_error == "warn":
            assert isinstance(error, LeaseLost)
            assert "another process has driven it" in str(error)
        assert (await verify_run(store, "r")).problem is None
        assert await counting.resume("r").run(App(Checkpoints(store))) == Success(4)
        completed = [one for one in await read_entries(store, "r") if isinstance(one, Completed)]
        assert [one.step for one in completed] == ["count", "count#2", "count#3", "count#4"]


class Mute(ForwardingStore):
    """Writes the last append of a run, and does not answer."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.has_ended = anyio.Event()
        self.claims = 0

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        self.claims += 1
        return await super().claim(run_id, owner=owner, seconds=seconds)

    async def append(
        self, lease: Lease, bodies: Sequence[bytes], *, release: bool = False, **options: Any
    ) -> None:
        await super().append(lease, bodies, release=release, **options)
        if release:
            self.has_ended.set()
            await anyio.sleep_forever()


async def test_a_run_whose_end_was_written_is_not_claimed_again_to_find_that_out() -> None:
    """A process that died with the new lease would leave it behind forever."""
    store = Mute()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(counting.start(1, run_id="r").run, App(Checkpoints(store)))
        await store.has_ended.wait()
        tasks.cancel_scope.cancel()
    assert store.claims == 1
    info = await store.info("r")
    assert info is not None
    assert (info.summary.status, info.lease) == (RunStatus.COMPLETED, None)
