"""Cancellation of runs that workers drive: finalizers run, whatever the run does and whatever dies."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from effectflow import Do, Effect, Signal, Workflow, bracket, spawn, workflow
from effectflow.checkpoint import RunStatus
from tests.apps import App, Broken
from tests.service.conftest import Service
from tests.service.lives import act, killed_everywhere, result_of, working

pytestmark = pytest.mark.anyio

permission: Signal[str] = Signal("permission", str)


def held(use: Effect[App, Broken, str]) -> Effect[App, Broken, str]:
    return bracket(act("acquire"), lambda _: act("release"), lambda _: use)


@workflow
def holding(_: None) -> Do[App, Broken, str]:
    return (yield from held(permission.wait()))


@workflow
def around_nested(_: None) -> Do[App, Broken, str]:
    return (yield from holding.call(None))


@workflow
def around_twice_nested(_: None) -> Do[App, Broken, str]:
    return (yield from held(around_nested.call(None)))


@workflow
def around_spawned(_: None) -> Do[App, Any, str]:
    child = yield from spawn(holding, None)
    return (yield from held(child.result()))


async def all_are(service: Service, *statuses: RunStatus) -> None:
    """Wait until each run has one of these statuses, and is held by nobody."""
    with anyio.fail_after(10):
        while not all(
            info.summary.status in statuses and info.lease is None
            for info in await service.store.find()
        ):
            await anyio.sleep(0.005)


JOURNEYS = [holding, around_nested, around_twice_nested, around_spawned]


@pytest.mark.parametrize("made", JOURNEYS, ids=lambda made: made.name)
async def test_a_killed_service_completes_the_finalizers_of_cancelled_runs(
    made: Workflow[App, Any, None, str],
) -> None:
    async def live(service: Service) -> object:
        async with working(service, *JOURNEYS) as worker:
            handle = await worker.client.submit(made, None, run_id="r")
            await all_are(service, RunStatus.SUSPENDED, RunStatus.CANCELLED)
            if not (await handle.status()).has_ended:
                await handle.cancel()
            result = await result_of(handle)
            await all_are(service, RunStatus.CANCELLED)
            return result

    assert await killed_everywhere(live) > 10
