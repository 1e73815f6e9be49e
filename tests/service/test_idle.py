"""Tests wait until a worker has nothing to do, and then advance its clock."""

from __future__ import annotations

from datetime import timedelta

import pytest
from returns.result import Success

from effectflow import Do, Signal, TimedOut, sleep, spawn, workflow
from effectflow.checkpoint import RunStatus
from effectflow.testing import TestClock
from tests.apps import App, Broken, both_backends
from tests.service.conftest import Service, both_stores
from tests.service.lives import act

pytestmark = pytest.mark.anyio

approval: Signal[str] = Signal("approval", str)


@workflow
def patient(_: None) -> Do[App, Broken, str]:
    yield from act("begin")
    yield from sleep(timedelta(days=3))
    return (yield from act("end"))


@workflow
def hasty(_: None) -> Do[App, Broken | TimedOut, str]:
    """Rests in the memory of its worker."""
    yield from sleep(3)
    try:
        return (yield from approval.wait().timeout(4))
    except TimedOut:
        return (yield from act("late"))


@workflow
def parent(_: None) -> Do[App, Broken | TimedOut, str]:
    child = yield from spawn(hasty)
    return (yield from child.result())


@both_stores
async def test_an_idle_worker_has_suspended_its_runs_and_taken_those_that_are_due(
    service: Service,
) -> None:
    clock = TestClock()
    async with service.worker(patient, clock=clock) as worker:
        await worker.idle()
        handle = await worker.client.submit(patient)
        await worker.idle()
        assert await handle.status() is RunStatus.SUSPENDED
        assert service.world.done == ["begin"]
        await clock.advance(timedelta(days=3))
        await worker.idle()
        assert await handle.status() is RunStatus.COMPLETED
        assert service.world.done == ["begin", "end"]


@both_backends
async def test_runs_that_wait_in_memory_are_idle_until_a_message_arrives(service: Service) -> None:
    clock = TestClock()
    async with service.worker(hasty, parent, clock=clock) as worker:
        told = await worker.client.submit(hasty)
        late = await worker.client.submit(parent)
        await worker.idle()
        await clock.advance(3)
        await worker.idle()
        await told.send(approval, "ann")
        await worker.idle()
        assert await told.status() is RunStatus.COMPLETED
        assert await told.result(timeout=0) == Success("ann")
        assert await late.status() is not RunStatus.COMPLETED
        await clock.advance(4)
        await worker.idle()
        assert await late.result(timeout=0) == Success("late")


async def test_a_worker_that_is_not_open_is_never_idle(service: Service) -> None:
    with pytest.raises(RuntimeError, match="is not open"):
        await service.worker(hasty).idle()
