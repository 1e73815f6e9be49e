"""`effectflow top`: what the workers of a store do, in one picture or again and again."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.console import Console

from effectflow.checkpoint import Checkpoints, RunInfo, RunStatus, RunSummary
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.run_info import RunDetails
from effectflow.cli import top
from effectflow.cli.access import Access
from effectflow.observe.overview import (
    MOST_COUNTED,
    Process,
    QueueLoad,
    overview_of,
    read_overview,
)
from effectflow.observe.workers import KnownWorker
from effectflow.stores import MemoryStore
from tests.cli.conftest import Command
from tests.cli.services import driven, submitted, write_mall

APP = ("--app", "mall:app")
NOW = 1_000_000.0


def run(
    run_id: str,
    status: RunStatus,
    *,
    updated: float = NOW,
    due_at: float | None = None,
    held_by: int | None = None,
    workflow: str = "order",
) -> RunInfo:
    owner = "" if held_by is None else str(Owner(held_by, "host/x", "born", run_id))
    lease = None if held_by is None else Lease(run_id, owner, 1, NOW + 60)
    details = RunDetails(waits_for="signal approval")
    summary = RunSummary(workflow, status, updated, due_at, details=details)
    return RunInfo(run_id, summary, updated, 3, lease)


def worker(pid: int, seconds_ago: float, limit: int = 5, **workflows: str) -> KnownWorker:
    owner = str(Owner(pid, "host/x", "born", str(seconds_ago)))
    return KnownWorker(owner, limit, workflows, 0.0, NOW - seconds_ago)


def test_runs_are_counted_and_the_oldest_are_named() -> None:
    pages = {
        RunStatus.PENDING: [
            run("p1", RunStatus.PENDING, updated=NOW - 50, due_at=0.0),
            run("p2", RunStatus.PENDING, updated=NOW - 180, due_at=NOW - 7380),
            run("later", RunStatus.PENDING, updated=NOW - 999, due_at=NOW + 9),
        ],
        RunStatus.RUNNING: [
            run("r1", RunStatus.RUNNING, held_by=1, updated=NOW - 9999, due_at=0.0),
            run("r2", RunStatus.RUNNING, held_by=2),
            run("r3", RunStatus.RUNNING, held_by=2, workflow="pack\x1b"),
            run("dead", RunStatus.RUNNING, due_at=0.0),
        ],
        RunStatus.SUSPENDED: [
            run("s1", RunStatus.SUSPENDED, updated=NOW - 86400),
            run("s2", RunStatus.SUSPENDED, updated=NOW - 2 * 86400),
        ],
    }
    ended = [run(f"c{number}", RunStatus.COMPLETED) for number in range(4)]
    ended.append(run("f", RunStatus.FAILED))

    every = [one for page in pages.values() for one in page]
    workers = [
        worker(2, 20, order="1", pack="1"),
        worker(2, 99, limit=5),
        worker(2, 30),
        worker(3, 9, pack="1", order="2"),
        worker(4, 180, order="1"),
    ]

    found = overview_of(pages, every, ended, NOW, workers=workers)

    assert found.counts == {"pending": 3, "running": 3, "crashed": 1, "suspended": 2}
    assert found.oldest_due is not None
    assert found.oldest_due.run_id == "p2"
    shown = list(top.top_lines(found))
    assert shown[1:] == [
        "runs          3 pending, 3 running, 1 crashed, 2 suspended",
        "per minute    0 cancelled, 4 completed, 1 failed",
        "oldest due    p2 of order, pending, due for 3m",
        "longest wait  s2 of order, for 2d, for signal approval",
        "",
        "PROCESS            SEEN         RUNS     WORKFLOWS",
        "process 2 on host  20s ago      2 of 10  order 1, pack\\x1b 1",
        "process 1 on host               1        order 1",
        "process 3 on host  9s ago       0 of 5   none of order, pack",
        "unknown            lost         1        order 1",
        "process 4 on host  lost 3m ago  0 of 5   none of order",
    ]


def test_processes_that_died_queues_and_versions_are_told() -> None:
    dead = run("d", RunStatus.RUNNING, held_by=7, updated=NOW - 90)
    assert dead.lease is not None
    dead = replace(dead, lease=replace(dead.lease, expires_at=NOW - 1))
    waits = run("p", RunStatus.PENDING, due_at=0.0)
    waits = replace(waits, summary=replace(waits.summary, queue="slow", key="ann"))
    job = run("j", RunStatus.PENDING, due_at=NOW + 9, workflow="words")
    job = replace(job, summary=replace(job.summary, details=RunDetails("mapreduce", "2")))
    running = [run("r", RunStatus.RUNNING, held_by=2), dead]
    pages = {RunStatus.RUNNING: running, RunStatus.PENDING: [waits, job]}

    found = overview_of(pages, [], [], NOW)

    assert found.processes == (Process("process 2 on host", {"order": 1}, NOW, NOW + 60),)
    assert found.lost == (Process("process 7 on host", {"order": 1}, NOW - 90, NOW - 1),)
    assert found.queues == (
        QueueLoad("order", 1, {}),
        QueueLoad("slow", 0, {"ann": 1}),
        QueueLoad("words", 0, {"": 1}),
    )
    assert found.jobs == (job,)
    assert found.versions == {("order", "1"): 3, ("words", "2"): 1}


@pytest.mark.anyio
async def test_counts_are_bounded_and_the_oldest_of_many_is_found() -> None:
    class Many(MemoryStore):
        async def find(self, query: Any = None) -> list[RunInfo]:
            assert query.limit is not None
            if query.statuses != {RunStatus.PENDING}:
                return []
            if query.updated_before is None:
                return [run(f"p{n}", RunStatus.PENDING, due_at=0.0) for n in range(query.limit)]
            old = run("old", RunStatus.PENDING, updated=NOW - 4000, due_at=0.0)
            return [old] if old.updated_at < query.updated_before else []

    found = await read_overview(Many(), NOW)

    assert found.oldest_due is not None
    assert found.oldest_due.run_id == "old"
    assert f"runs          {MOST_COUNTED}+ pending" in list(top.top_lines(found))


def test_one_picture_is_printed_of_a_real_store(effectflow: Command, folder: Path) -> None:
    mall = write_mall(folder)
    submitted(mall, "order", 5, "o1")
    driven(mall, "o1")
    submitted(mall, "remind", 3.0, "r1")

    ran = effectflow("top", *APP, "--once")
    assert ran.code == 0, ran
    assert "runs          1 pending, 1 suspended\n" in ran.out
    assert re.search(r"\noldest due    r1 of remind, pending, due for \d+s\n", ran.out)
    assert re.search(r"\nlongest wait  o1 of order, for \d+s, for signal approval\n", ran.out)
    assert "No worker is known, and no process drives a run." in ran.out
    tree = effectflow("top", *APP, "--json").json
    assert tree["counts"] == {"pending": 1, "suspended": 1}
    assert tree["oldest_due"]["run_id"] == "r1"


@pytest.mark.anyio
async def test_the_picture_is_shown_again_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "_SECONDS_BETWEEN_PICTURES", 0.001)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=20)
    with anyio.move_on_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(top._watch, Access(Checkpoints(MemoryStore())), console)
            while out.getvalue().count("No worker is known") < 2:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
    assert out.getvalue().count("No worker is known") >= 2
