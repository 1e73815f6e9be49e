"""Workers of an old and a new version of the code share a store during a rolling deployment."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from returns.result import Success

from effectflow import App as Service, Checkpoints, Do, Worker, sleep, workflow
from effectflow.checkpoint import RunStatus, find_run
from effectflow.runs import StepMigration
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, World
from tests.runs.journals import AnyWorkflow, act

pytestmark = pytest.mark.anyio


def order(version: str, **options: Any) -> AnyWorkflow:
    """Return a workflow that books, waits for an hour, and ships, as each version does."""

    def body(_: object) -> Do[App, Exception, str]:
        yield from act(f"book {version}")
        yield from sleep(3600)
        return (yield from act(f"ship {version}"))

    decorate: Any = workflow(name="order", version=version, **options)
    return decorate(body)


class Deployment:
    """A store, a clock and a world that the workers of all versions share."""

    def __init__(self) -> None:
        self.clock, self.world, self.store = TestClock(), World(), MemoryStore()

    def worker(self, made: AnyWorkflow, **options: Any) -> Worker[App]:
        service = Service(
            [made],
            environment=lambda known: App(known, self.world),
            checkpoints=Checkpoints(self.store),
        )
        return Worker(service, clock=self.clock, suspend_after=0, **options)

    async def blocked(self, run_id: str) -> tuple[str, float]:
        """Return why a run is blocked, and the seconds until a worker may take it."""
        info = await find_run(self.store, run_id)
        assert info is not None
        assert info.summary.status is RunStatus.BLOCKED
        assert info.summary.due_at is not None
        left = info.summary.due_at - self.clock.now().timestamp()
        return info.summary.details.blocked, left


async def test_a_run_is_driven_by_workers_of_its_version() -> None:
    shared = Deployment()
    old, new = shared.worker(order("1")), shared.worker(order("2"))
    async with old, new:
        handle = await new.client.submit(order("1"), None, run_id="r")
        # Whether a worker of its version is the first that sees the run is a matter of chance.
        for _ in range(100):
            if len(shared.world.done) < 2:
                await shared.clock.advance(60)
                await old.idle()
                await new.idle()
        assert await handle.result(timeout=10) == Success("ship 1")

    assert shared.world.done == ["book 1", "ship 1"]


async def test_a_worker_of_another_version_leaves_a_run_to_others_and_soon() -> None:
    shared = Deployment()
    async with shared.worker(order("2")) as new:
        await new.client.submit(order("1"), None, run_id="r")
        await new.idle()

        reason, left = await shared.blocked("r")
        assert "the run is of version '1', and this worker takes '2'" in reason
        assert 0 < left <= 1
        # No other worker has taken it, so it is looked at less often.
        await shared.clock.advance(timedelta(hours=1))
        await new.idle()
        _, left = await shared.blocked("r")
        assert 1 < left <= 60

    async with shared.worker(order("1")) as old:
        await shared.clock.advance(60)
        await old.idle()
        await shared.clock.advance(3600)
        assert await old.client.handle(order("1"), "r").result(timeout=10) == Success("ship 1")


async def test_pinned_runs_are_not_migrated_by_a_new_worker() -> None:
    shared = Deployment()
    migrated = order("2", migrations={1: StepMigration(renames={"book 1": "book 2"})})
    async with shared.worker(migrated, versions={"order": ["2"]}) as pinned:
        await pinned.client.submit(order("1"), None, run_id="r")
        await pinned.idle()
        reason, _ = await shared.blocked("r")
        assert "this worker takes '2'" in reason

    # Once the old workers are gone, one that is not pinned continues its runs.
    async with shared.worker(migrated) as last:
        await shared.clock.advance(60)
        await last.idle()
        await shared.clock.advance(3600)
        assert await last.client.handle(migrated, "r").result(timeout=10) == Success("ship 2")


def test_versions_that_the_app_does_not_continue_are_rejected() -> None:
    shared = Deployment()
    for versions in ({"order": ["3"]}, {"basket": ["1"]}):
        with pytest.raises(
            ValueError, match="which the App does not have, or has no migration for"
        ):
            shared.worker(order("2"), versions=versions)
    with pytest.raises(TypeError, match=r"takes a list of texts, such as .*, not '2'"):
        shared.worker(order("2"), versions={"order": "2"})
