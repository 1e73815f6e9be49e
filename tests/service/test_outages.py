"""A run whose store fails for a while is taken again, and is what it says it is meanwhile."""

from __future__ import annotations

import anyio
import pytest
from returns.result import Success

from effectflow import Do, workflow
from effectflow.checkpoint import RunStatus
from effectflow.checkpoint.entries import Finished
from effectflow.stores import MemoryStore
from effectflow.testing import FaultyStore, SaveFails, Unavailable, after
from effectflow.testing.faulty_store import Fault
from tests.apps import App, Broken
from tests.service.conftest import Service
from tests.service.lives import act, entries_of, info_of, working

pytestmark = pytest.mark.anyio


@workflow
def two_steps(_: None) -> Do[App, Broken, str]:
    yield from act("first")
    return (yield from act("second"))


ERRORS: dict[str, list[Fault]] = {
    "a save": [SaveFails(after("act"))],
    "a save with a lost answer": [SaveFails(after("act"), is_durable=True)],
    "a look": [Unavailable("read", 1)],
    "everything": [
        *(SaveFails(number) for number in range(2, 5)),
        *(Unavailable("release", number) for number in range(1, 4)),
        *(Unavailable("claim_due", number) for number in range(3, 6)),
    ],
}


@pytest.mark.parametrize("errors", ERRORS.values(), ids=ERRORS)
async def test_a_run_goes_on_as_soon_as_its_store_is_back(
    service: Service, errors: list[Fault]
) -> None:
    store = FaultyStore(service.store, errors)
    service = Service(store, service.world)
    async with working(service, two_steps) as worker:
        handle = await worker.client.submit(two_steps, None, run_id="r")
        # Much less than the minute after which a run is tried again that does not fit the program.
        assert await handle.result(timeout=20) == Success("second")
    assert errors[0] in store.met
    assert (await info_of(service, "r")).summary.blocked == ""


async def test_a_run_whose_end_was_not_saved_is_not_shown_as_ended() -> None:
    whole = FaultyStore(MemoryStore())
    async with working(Service(whole), two_steps) as worker:
        handle = await worker.client.submit(two_steps, None, run_id="r")
        await handle.result(timeout=10)
    last = sum(call.operation == "append" for call in whole.calls)

    service = Service(FaultyStore(MemoryStore(), [SaveFails(last)]))
    async with working(service, two_steps) as worker:
        handle = await worker.client.submit(two_steps, None, run_id="r")
        with anyio.fail_after(10):
            while not (info := await info_of(service, "r")).summary.blocked:
                await anyio.sleep(0.01)
        assert not any(isinstance(entry, Finished) for entry in await entries_of(service, "r"))
        assert info.summary.status is RunStatus.RUNNING
        assert await handle.result(timeout=20) == Success("second")
