"""Runs are deleted: one by its handle, old ones by `prune`, and by the rules of an App."""

from __future__ import annotations

import signal
import sqlite3
import textwrap
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Client,
    Do,
    Retention,
    RunStatus,
    Schedule,
    Signal,
    SqliteStore,
    Worker,
    spawn,
    workflow,
)
from effectflow.checkpoint import (
    ChangeRejected,
    RunBusy,
    RunConflict,
    RunNotFound,
    RunQuery,
    export_run,
    verify_run,
)
from effectflow.stores import ArchiveStore
from effectflow.testing import TestClock
from tests.apps import App, Broken
from tests.programs import PIPE, ROOT, Program
from tests.service.conftest import Service, both_stores
from tests.service.lives import act, info_of, suspended, until, working

pytestmark = pytest.mark.anyio

go: Signal[str] = Signal("go", str)


@workflow
def quick(name: str) -> Do[App, Broken, str]:
    return (yield from act(name))


@workflow
def other(name: str) -> Do[App, Broken, str]:
    return (yield from act(name))


@workflow
def waiting(_: str) -> Do[App, Any, str]:
    return (yield from go.wait())


@workflow
def parent(_: None) -> Do[App, Any, str]:
    yield from (yield from spawn(quick, "a", run_id="ended child")).result()
    return (yield from (yield from spawn(waiting, "b", run_id="child")).result())


async def ran(service: Service, *run_ids: str, **options: Any) -> None:
    """Run `quick` to its end under each of these ids, one after the other."""
    flow = options.get("workflow", quick)
    for run_id in run_ids:
        env = App(service.checkpoints(), service.world)
        await flow.start(run_id, run_id=run_id).run(env)


MONTH = timedelta(days=30)


def in_2100(service: Service) -> Client:
    """Return a client for which all runs are old."""
    return Client(service.checkpoints(), clock=TestClock())


async def left(service: Service) -> list[str]:
    return [info.run_id for info in await service.store.find(RunQuery(limit=None))]


async def ended_at(service: Service, run_id: str) -> datetime:
    return datetime.fromtimestamp((await info_of(service, run_id)).updated_at, UTC)


@both_stores
async def test_a_run_is_deleted_with_all_that_it_has(service: Service) -> None:
    await ran(service, "r", "s")
    handle = service.client.handle(quick, "r")
    with pytest.raises(RunConflict):
        await service.client.handle(other, "r").delete()
    await handle.delete()
    assert await left(service) == ["s"]
    assert await service.store.read("r") == []
    with pytest.raises(RunNotFound):
        await handle.delete()
    # The id is free again.
    async with working(service, quick) as worker:
        again = await worker.client.submit(quick, "r", run_id="r")
        assert await again.result() == Success("r")


async def test_a_run_that_a_process_drives_is_not_deleted(service: Service) -> None:
    await ran(service, "r")
    taken = await service.store.claim("r", owner="x", seconds=60)
    with pytest.raises(RunBusy):
        await service.client.handle(quick, "r").delete()
    assert await in_2100(service).prune(before=MONTH) == 0
    await service.store.release(taken.lease)
    assert await in_2100(service).prune(before=MONTH) == 1


async def test_a_child_is_not_deleted_before_its_parent_has_ended(service: Service) -> None:
    async with working(service, parent, quick, waiting) as worker:
        handle = await worker.client.submit(parent, run_id="parent")
        await suspended(service, "child")
        await suspended(service, "parent")
        for child, run_id in ((waiting, "child"), (quick, "ended child")):
            with pytest.raises(ChangeRejected, match="run 'parent', which has spawned it"):
                await worker.client.handle(child, run_id).delete()
        assert await in_2100(service).prune(before=MONTH) == 0
        await handle.delete()
        # The child continues without it.
        await worker.client.handle(waiting, "child").send(go, "on")
        await until(service, "child", RunStatus.COMPLETED)
        assert await in_2100(service).prune(before=MONTH) == 2
    assert await left(service) == []


@both_stores
async def test_prune_takes_the_old_ended_runs_that_are_not_among_the_newest(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effectflow.runs.retention._BATCH", 2)
    client = service.client
    service.world.failing = {"f1", "f2"}
    await ran(service, "a", "f1", "b", "c", "f2", "d")
    await ran(service, "o", workflow=other)
    await client.submit(quick, "p", run_id="p")
    before = await ended_at(service, "d") - timedelta(microseconds=1)
    assert await client.prune(before=before, workflow="quick", dry_run=True) == 3
    assert await client.prune(before=before, workflow="quick", keep=2) == 2
    assert await left(service) == ["p", "o", "d", "f2", "c", "f1"]
    assert await client.prune(keep=9) == 0
    assert await client.prune(keep=1, status=RunStatus.FAILED) == 1
    assert await left(service) == ["p", "o", "d", "f2", "c"]
    assert await client.prune(before=timedelta(days=1)) == 0
    assert await in_2100(service).prune(before=MONTH, workflow="quick") == 2
    assert await left(service) == ["p", "o", "f2"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "say which runs stay"),
        ({"before": 1, "status": RunStatus.SUSPENDED}, "only completed, cancelled and failed"),
        ({"keep": -1}, "keep must be an int >= 0"),
        ({"before": -1}, "before must be a finite number of seconds"),
    ],
)
async def test_what_says_too_little_is_rejected(
    service: Service, given: dict[str, Any], said: str
) -> None:
    await ran(service, "r")
    with pytest.raises(ValueError, match=said):
        await service.client.prune(**given)
    assert await left(service) == ["r"]


@both_stores
async def test_several_that_prune_at_once_delete_each_run_once(service: Service) -> None:
    await ran(service, *(f"r{number}" for number in range(12)))
    counts: list[int] = []

    async def prune() -> None:
        counts.append(await in_2100(service).prune(before=MONTH, keep=2))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(prune)
    assert sum(counts) == 10
    assert await left(service) == ["r11", "r10"]


async def test_the_newest_run_of_a_schedule_stays(service: Service) -> None:
    clock = TestClock()
    hourly = Schedule(quick, "0 * * * *", input="tick", name="hourly")
    # Its name begins like the ids of the others.
    other = Schedule(quick, "30 * * * *", input="tick", name="hourly@half")
    app = service.app(quick, schedules=[hourly, other], retention=[Retention(older_than=1)])
    async with Worker(app, clock=clock) as worker:
        await worker.idle()
        for _ in range(7):
            await clock.advance(1800)
            await worker.idle()
    # By this clock, each run was old as soon as it had ended.
    assert await left(service) == [
        "hourly@half@2100-01-01T03:30:00+00:00",
        "hourly@2100-01-01T03:00:00+00:00",
    ]


async def test_a_worker_deletes_what_the_rules_of_its_app_do_not_keep(service: Service) -> None:
    await ran(service, "a", "b", "c")
    day, clock = timedelta(days=1), TestClock(datetime.now(UTC))
    rules = [Retention(older_than=day, keep=1, workflow="quick")]
    async with Worker(service.app(quick, retention=rules), clock=clock) as worker:
        await worker.idle()
        assert await left(service) == ["c", "b", "a"]
        await clock.advance(day - timedelta(hours=1))
        await worker.idle()
        assert await left(service) == ["c", "b", "a"]
        await clock.advance(timedelta(hours=1))
        await worker.idle()
        assert await left(service) == ["c"]
    with pytest.raises(TypeError, match="retention takes rules such as"):
        service.app(quick, retention=[day])


KILLED = textwrap.dedent("""
    import anyio
    from effectflow import Checkpoints, Client, SqliteStore
    from effectflow.runs import retention
    from effectflow.testing import TestClock

    class Told(SqliteStore):
        async def delete_unchanged(self, runs):
            deleted = await super().delete_unchanged(runs)
            print(*deleted, flush=True)
            if "r10" in deleted:
                await anyio.sleep_forever()
            return deleted

    retention._BATCH = 1

    async def main():
        await Client(Checkpoints(Told("runs.db")), clock=TestClock()).prune(before=1)

    anyio.run(main)
""")


async def test_a_prune_that_is_killed_leaves_whole_runs_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        service = Service(store)
        await ran(service, *(f"r{number:02}" for number in range(20)))
        program = Program(["-c", KILLED], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, stdout=PIPE)
        assert program.stdout is not None
        deleted = [program.stdout.readline().strip() for _ in range(5)]
        program.kill()
        program.communicate()
        assert program.returncode == -signal.SIGKILL
        remaining = await left(service)
        assert remaining
        assert not {*remaining} & {*deleted}
        for run_id in remaining:
            assert (await verify_run(store, run_id)).problem is None
        # Its leases are those of a dead process.
        assert await in_2100(service).prune(before=MONTH) == len(remaining)
        assert await left(service) == []
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM entries").fetchone() == (0,)


@both_stores
async def test_a_client_archives_ended_runs_and_deletes_what_is_in_the_file(
    service: Service, tmp_path: Path
) -> None:
    service.world.failing = {"f"}
    await ran(service, "a", "f", "b")
    await service.client.submit(quick, "p", run_id="p")
    path = tmp_path / "old.jsonl.gz"
    with pytest.raises(FileNotFoundError):
        await service.client.archive(tmp_path / "nowhere" / "x.gz", delete=True)
    assert await service.client.archive(path, before=MONTH, delete=True) == 0
    path.unlink()
    exported = [await export_run(service.store, run_id) for run_id in "ba"]
    assert await service.client.archive(path, delete=True) == 2
    assert await left(service) == ["p", "f"]
    with pytest.raises(FileExistsError):
        await service.client.archive(path, status=RunStatus.FAILED, delete=True)
    async with ArchiveStore(path) as archive:
        assert [await export_run(archive, run_id) for run_id in "ba"] == exported
    # Its messages would be lost.
    await service.store.send("f", "signal:go", key="k", body=b"")
    failed = tmp_path / "failed.jsonl.gz"
    assert await service.client.archive(failed, status=RunStatus.FAILED, delete=True) == 1
    assert await left(service) == ["p", "f"]
