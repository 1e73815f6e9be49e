"""Who waits for a run of an SQLite file looks at it again when another process has changed that run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from returns.result import Result, Success

from effectflow import Do, Signal, workflow
from effectflow.checkpoint import Message, Record, RunInfo, RunNotFound, RunQuery
from effectflow.checkpoint.notifications import listen, woken_by
from effectflow.stores import SqliteStore
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, Broken, both_backends
from tests.programs import ROOT, ran
from tests.service.conftest import Service

pytestmark = pytest.mark.anyio

approval: Signal[str] = Signal("approval", str)


@workflow
def approve(_: None) -> Do[App, Broken, str]:
    return (yield from approval.wait())


@pytest.fixture(autouse=True)
def never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look only because time has passed."""
    monkeypatch.setattr("effectflow.checkpoint.notifications._SECONDS_BETWEEN_LOOKS", 3600)


class Counting(ForwardingStore):
    """Counts how often each run is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(SqliteStore(path))
        self.reads = Counter[str | None]()

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        self.reads[query.run_id] += 1
        return await super().find(query)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        self.reads[run_id] += 1
        return await super().read(run_id, after=after)

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        self.reads[run_id] += 1
        return await super().mailbox(run_id, after=after)


async def seen(condition: Callable[[], object]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.005)


OTHER = """
import sys
import anyio
from effectflow.stores import SqliteStore
from tests.service.conftest import Service
from tests.service.test_changes_of_others import approval, approve
from tests.service.lives import working

async def main(path, act):
    async with SqliteStore(path) as store:
        service = Service(store)
        match act:
            case "submit":
                await service.client.submit(approve, None, run_id="another")
            case "delete":
                await store.delete("deleted")
            case "send":
                await service.client.handle(approve, "told").send(approval, "ann")
            case "end":
                handle = service.client.handle(approve, "ended")
                await handle.send(approval, "bob")
                async with working(service, approve):
                    await handle.result(timeout=30)

anyio.run(main, *sys.argv[1:])
"""


@both_backends
async def test_a_change_by_another_process_wakes_those_who_wait_for_the_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    results = dict[str, Result[str, object]]()

    async def other(act: str) -> None:
        program = ["-c", OTHER, str(path), act]
        await to_thread.run_sync(
            lambda: ran(program, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True)
        )

    async with SqliteStore(path) as store:
        client = Service(store).client
        handles = {
            run_id: await client.submit(approve, None, run_id=run_id)
            for run_id in ("deleted", "told", "ended")
        }

        async def wait_for(run_id: str) -> None:
            results[run_id] = await handles[run_id].result()

        async with anyio.create_task_group() as group, woken_by(store, "told") as told:
            with anyio.fail_after(60):
                group.start_soon(wait_for, "deleted")
                group.start_soon(wait_for, "ended")
                # The store now learns how the runs are, and compares them with that from then on.
                await other("submit")
                await told.wait()
                await other("delete")
                await seen(lambda: "deleted" in results)
                assert not told.is_set
                await other("send")
                await told.wait()
                assert "ended" not in results
                await other("end")
                await seen(lambda: "ended" in results)
    assert isinstance(results["deleted"].failure(), RunNotFound)
    assert results["ended"] == Success("bob")


@both_backends
async def test_a_change_by_another_process_before_any_other_wakes_those_who_wait(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store, SqliteStore(path) as other:
        handle = await Service(store).client.submit(approve, None, run_id="r")
        async with woken_by(store, "r") as woken:
            await Service(other).client.handle(approve, handle.run_id).send(approval, "ann")
            with anyio.fail_after(30):
                await woken.wait()


@both_backends
async def test_who_waits_for_one_run_does_not_read_it_when_another_process_changes_other_runs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    async with Counting(path) as store, SqliteStore(path) as other:
        client, others = Service(store).client, Service(other).client
        handle = await client.submit(approve, None, run_id="waited for")
        for run_id in ("listened to", "changed"):
            await others.submit(approve, None, run_id=run_id)
        changed = others.handle(approve, "changed")
        heard = list[str]()

        async with anyio.create_task_group() as group, woken_by(store, "changed") as woken:
            group.start_soon(handle.result)
            end_listening = listen(store, "listened to", lambda: heard.append("listened to"))
            await seen(lambda: store.reads["waited for"] == 1)
            # Each run is read once after the first change, which may be one of it.
            await changed.send(approval, "first")
            await seen(lambda: store.reads["waited for"] == 2)
            with anyio.fail_after(30):
                await woken.wait()
                for number in range(5):
                    await changed.send(approval, str(number))
                    await woken.wait()
            # All of them were told at the same time, and read at once.
            await anyio.wait_all_tasks_blocked()
            assert store.reads["waited for"] == 2
            assert heard == ["listened to"]
            await others.handle(approve, "listened to").cancel()
            await seen(lambda: len(heard) == 2)
            assert store.reads["waited for"] == 2
            end_listening()
            group.cancel_scope.cancel()
