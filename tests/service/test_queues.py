"""Queues of runs with keys that take turns, and pauses of queues, workflows and schedules."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings, strategies as st

from effectflow import Checkpoints, Client, Do, Effect, Queue, SqliteStore, step, workflow
from effectflow.checkpoint import RunStatus, RunSummary
from effectflow.checkpoint.lease import Owner
from effectflow.checkpoint.store import DueRuns, Taken
from effectflow.service import Schedule
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests import apps
from tests.apps import note
from tests.service.conftest import Service

pytestmark = pytest.mark.anyio


@step
def done(name: str) -> Effect[apps.App, apps.Broken, int]:
    return note(name)


@workflow
def act(name: str) -> Do[apps.App, apps.Broken, int]:
    return (yield from done(name))


@workflow
def other(name: str) -> Do[apps.App, apps.Broken, int]:
    return (yield from done(name))


async def submitted(service: Service, *names: str, **options: Any) -> None:
    for name in names:
        await service.client.submit(act, name, run_id=name, key=name[0], **options)


async def test_the_keys_of_a_queue_take_turns(service: Service) -> None:
    await submitted(service, "a1", "a2", "a3", "a4", "b1", queue="reports")
    async with service.worker(act, limit=1, queues=[Queue("reports", limit=1)]) as worker:
        await worker.idle()
    assert service.world.done == ["a1", "b1", "a2", "a3", "a4"]


async def test_keys_take_turns_in_a_queue_that_no_one_declared(service: Service) -> None:
    await submitted(service, "a1", "a2", "b1")
    async with service.worker(act, limit=1) as worker:
        await worker.idle()
    assert service.world.done == ["a1", "b1", "a2"]


async def test_a_run_shows_its_queue_and_keeps_it(service: Service) -> None:
    await submitted(service, "a1", queue="reports")
    async with service.worker(act) as worker:
        await worker.idle()
        rerun = await worker.client.handle(act, "a1").rerun()
    for info in await service.client.find():
        assert (info.summary.queue, info.summary.key) == ("reports", "a"), info
    assert rerun.run_id != "a1"


async def test_the_id_of_a_run_deduplicates_it_in_any_queue(service: Service) -> None:
    await submitted(service, "a1", queue="reports")
    await submitted(service, "a1", queue="others")
    [info] = await service.client.find()
    assert info.summary.queue == "reports"


@pytest.fixture
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effectflow.service.worker._SECONDS_BETWEEN_LOOKS", 0.01)


@pytest.mark.usefixtures("looks_at_once")
@pytest.mark.parametrize("paused", [{"queue": "reports"}, {"workflow": "act"}])
async def test_what_is_paused_is_not_taken(service: Service, paused: dict[str, str]) -> None:
    await service.client.pause(**paused)
    await submitted(service, "a1", queue="reports")
    await service.client.submit(other, "free", run_id="free")
    async with service.worker(act, other) as worker:
        await worker.client.handle(other, "free").result(timeout=10)
        await anyio.sleep(0.05)
        assert service.world.done == ["free"]
        [pause] = await service.client.pauses()
        assert {pause.kind: pause.name} == paused
        assert pause.by == service.client.by
        await service.client.unpause(**paused)
        await worker.client.handle(act, "a1").result(timeout=10)
    assert await service.client.pauses() == []


@pytest.mark.usefixtures("looks_at_once")
async def test_a_pause_of_the_queue_of_a_workflow_holds_its_runs_under_former_names(
    service: Service,
) -> None:
    await submitted(service, "a1", queue="")

    @workflow(name="renamed", aliases=["act"])
    def renamed(name: str) -> Effect[apps.App, apps.Broken, int]:
        return note(name)

    await service.client.pause(queue="renamed")
    await service.client.submit(other, "free", run_id="free")
    async with service.worker(renamed, other) as worker:
        await worker.client.handle(other, "free").result(timeout=10)
        await worker.idle()
        assert service.world.done == ["free"]


async def test_a_paused_schedule_leaves_its_ticks_out(service: Service) -> None:
    hourly = Schedule(act, "0 * * * *", name="hourly", input="tick")
    clock = TestClock(datetime(2026, 1, 1, 0, 30, tzinfo=UTC))
    async with service.worker(act, schedules=[hourly], clock=clock) as worker:
        await worker.idle()
        await clock.advance(timedelta(hours=1))
        await worker.idle()
        await service.client.pause(schedule="hourly")
        await clock.advance(timedelta(hours=2))
        await worker.idle()
        assert service.world.done == ["tick"]
        await Client(service.checkpoints(), clock=clock).unpause(schedule="hourly")
    # Neither are they started by the worker of a new deployment.
    async with service.worker(act, schedules=[hourly], clock=clock) as worker:
        await worker.idle()
        await clock.advance(timedelta(hours=1))
        await worker.idle()
    assert service.world.done == ["tick", "tick"]
    newest, *_ = await service.client.find()
    assert newest.run_id.startswith("hourly@2026-01-01T04:00")


# No key waits for long, limits are never exceeded, and each run is claimed once.


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[str], Queue, list[tuple[int, int, bool]]]:
    """Return the keys of runs in order, their queue, and claims: a worker, how many, and to end some."""
    keys = draw(st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=1, max_size=25))
    limits = st.none() | st.integers(1, 4)
    queue = Queue("q", draw(limits), per_key=draw(limits))
    claims = st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans())
    return keys, queue, draw(st.lists(claims, max_size=15))


@settings(max_examples=60, deadline=None)
@given(histories())
def test_any_claims_of_any_keys_are_fair(
    history: tuple[list[str], Queue, list[tuple[int, int, bool]]],
) -> None:
    anyio.run(_claim_all, *history)


async def _claim_all(keys: list[str], queue: Queue, claims: list[tuple[int, int, bool]]) -> None:
    store = MemoryStore()
    for number, key in enumerate(keys):
        summary = RunSummary("w", RunStatus.PENDING, 100.0, 1.0 + number, queue="q", key=key)
        await store.create(f"{key}{number}", [b"1"], summary=summary)
    held: dict[int, list[Taken]] = {0: [], 1: [], 2: []}
    order: list[Taken] = []
    for worker, most, ends in [*claims, *[(0, 4, True)] * 2 * len(keys)]:
        owners = [str(Owner.new()) for _ in range(most)]
        due = DueRuns(frozenset({"w"}), owners, 60, 200.0, {"q": queue})
        taken = (await store.claim_due(due)).runs
        order += taken
        held[worker] += taken
        in_use = Counter(one.info.summary.key for some in held.values() for one in some)
        assert queue.limit is None or in_use.total() <= queue.limit
        if queue.per_key is not None:
            assert all(n <= queue.per_key for key, n in in_use.items() if key)
        if ends:
            for one in held.pop(worker):
                await store.delete(one.lease.run_id, lease=one.lease)
            held[worker] = []
        if not any(held.values()) and len(order) == len(keys):
            break
        if worker == 0 and ends:
            # Claims that a worker holds forever would block the others.
            for some in held.values():
                for one in some:
                    await store.delete(one.lease.run_id, lease=one.lease)
                some.clear()
    run_ids = [one.lease.run_id for one in order]
    assert len(set(run_ids)) == len(run_ids) == len(keys)
    if queue.per_key is None:
        # A run waits for at most one of each other key, for each run of its own that is before it.
        for place, one in enumerate(order):
            key = one.info.summary.key
            own = sum(other.info.summary.key == key for other in order[:place])
            assert place <= own + (own + 1) * (len(set(keys)) - 1)


WORKER = """
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio
from effectflow import App, Checkpoints, Do, Queue, SqliteStore, Worker, step, workflow

@dataclass
class Shop:
    checkpoints: Checkpoints

@step
async def work(name: str) -> str:
    print(name, flush=True)
    if not Path(sys.argv[2]).exists():
        await anyio.sleep(600)
    return name

@workflow
def act(name: str) -> Do[Shop, object, str]:
    return (yield from work(name))

async def main() -> None:
    app = App(
        [act],
        environment=Shop,
        checkpoints=Checkpoints(SqliteStore(sys.argv[1])),
        queues=[Queue("q", limit=3, per_key=1)],
    )
    async with Worker(app):
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_the_runs_of_a_killed_worker_keep_to_the_limits_and_are_completed(
    tmp_path: Path,
) -> None:
    path, flag = tmp_path / "runs.db", tmp_path / "flag"

    def worker() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, str(path), str(flag)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    names = ["a1", "a2", "a3", "b1", "c1", "d1"]
    async with Client(Checkpoints(SqliteStore(path))) as client:
        for name in names:
            await client.submit(act, name, run_id=name, queue="q", key=name[0])
        with worker() as first:
            assert first.stdout is not None
            begun = [first.stdout.readline().strip() for _ in range(3)]
            first.kill()
            rest = first.stdout.read().split()
        assert (sorted(begun), rest) == (["a1", "b1", "c1"], [])

        flag.touch()
        with worker() as second:
            try:
                with anyio.fail_after(60):
                    while any(not one.summary.status.has_ended for one in await client.find()):
                        await anyio.sleep(0.02)
            finally:
                second.kill()
            assert second.stdout is not None
            assert sorted(second.stdout.read().split()) == names
