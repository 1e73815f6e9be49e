from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient

from effectflow import Checkpoints, Queue
from effectflow.checkpoint.store import service_of
from effectflow.observe.workers import KnownWorker, save_worker
from effectflow.service import App, Client, Schedule
from effectflow.stores import FileStore, MemoryStore
from effectflow.ui import create_app
from tests.ui.small_app import Environment, lengths, order, small_app


@pytest.fixture
def app() -> App[Environment]:
    return small_app(
        MemoryStore(),
        schedules=[Schedule(order, "30 2 * * *", input=1, name="nightly")],
        queues=[Queue("order", limit=4, per_key=1), Queue("reports", per_second=2)],
    )


async def fill(client: Client) -> None:
    """Have a job with a dead letter, runs that wait in queues, and the run of a schedule."""
    await lengths.start("good -", run_id="job").run(Environment(client.checkpoints))
    for number in range(12):
        await client.submit(order, number, run_id=f"order-{number}", key=f"tenant-{number}")
    await client.submit(order, 1, run_id="other", queue="slow")
    await client.submit(order, 1, run_id="nightly@2026-11-22T02:30:00+00:00")


def prepared(app: App[Any], work: Callable[[Client], Awaitable[object]]) -> None:
    async def run() -> None:
        async with Client(app, by="ann") as client:
            await work(client)

    anyio.run(run)


def row(text: str, row_id: str) -> str:
    """Return the row of a table with this id, without tags, on one line."""
    found = text.partition(f'id="{row_id}"')[2].partition("</tr>")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", found.partition(">")[2]).split())


def test_it_shows_schedules_queues_workflows_and_jobs(app: App[Any]) -> None:
    prepared(app, fill)
    with TestClient(create_app(app, app)) as pages:
        text = pages.get("/service").text
    assert "pending 14" in text
    assert row(text, "queue-order").startswith(
        "order 4 at once, 1 of a key 0 13 tenant-0 1, tenant-1 1"
    )
    assert "and 4 more" in row(text, "queue-order")
    assert row(text, "queue-reports") == "reports 2 per second 0 0 Pause"
    assert row(text, "queue-slow") == "slow none 0 1 Pause"
    assert "02:30:00 UTC" in row(text, "schedule-nightly")
    assert "nightly@2026-11-22T02:30:00+00:00 pending" in row(text, "schedule-nightly")
    assert row(text, "workflow-lengths") == "lengths mapreduce 1 Pause"
    assert row(text, "job-job") == "job lengths completed 1"
    assert 'href="/run/act/dead-letters?id=job"' in text


def test_it_shows_idle_workers_and_a_run_says_that_none_is_left(app: App[Any]) -> None:
    async def fill_and_tell(client: Client) -> None:
        store, now = service_of(client.checkpoints.store, "a test"), time.time()
        await client.submit(order, 1, run_id="waits")
        idle = KnownWorker("pid 4 on far/x (b, c)", 5, {"lengths": "1", "pack": "2"}, now, now)
        await save_worker(store, idle)
        lost = KnownWorker("pid 5 on far/x (b, c)", 5, {"order": "1"}, 0.0, 86400.0)
        await save_worker(store, lost)

    with TestClient(create_app(app, app)) as pages:
        assert "No worker is known" in pages.get("/service").text
        prepared_in(pages, app, fill_and_tell)
        text = pages.get("/service").text
        known, gone = row(text, "alive-process 4 on far"), row(text, "lost-process 5 on far")
        assert known.startswith("process 4 on far idle 20")
        assert known.endswith("UTC 0 of 5 lengths, pack version 2")
        assert gone == "process 5 on far lost 1970-01-02 00:00:00 UTC 0 of 5 order"
        header = pages.get("/run?id=waits").text
    assert "was seen since 1970-01-02 00:00:00 UTC" in header


def test_dead_letters_of_a_job_stay_in_sight_behind_many_newer_runs(app: App[Any]) -> None:
    async def fill_more(client: Client) -> None:
        environment = Environment(client.checkpoints)
        await lengths.start("good -", run_id="job").run(environment)
        for number in range(201):
            await order.start(number, run_id=f"order-{number}").run(environment)

    prepared(app, fill_more)
    with TestClient(create_app(app, app)) as pages:
        assert row(pages.get("/service").text, "job-job") == "job lengths completed 1"


@pytest.mark.parametrize("kind", ["queue", "workflow", "schedule"])
def test_a_pause_is_shown_first_and_then_set_and_ended(app: App[Any], kind: str) -> None:
    async def pauses(client: Client) -> None:
        found.append([(one.kind, one.name, one.by) for one in await client.pauses()])

    found: list[Any] = []
    with TestClient(create_app(app, app, by="ann"), follow_redirects=False) as pages:
        at = f"/service/pause?kind={kind}&name=x%26y"
        assert "until someone unpauses it" in pages.get(at).text
        assert "paused" not in pages.get("/service").text
        done = pages.post(f"{at}&do=pause")
        assert (done.status_code, done.headers["location"]) == (303, "/service")
        assert "paused by ann" in row(pages.get("/service").text, f"{kind}-x&amp;y")
        assert "ann paused it" in pages.get(at).text
        assert pages.post(f"{at}&do=other").status_code == 400
        prepared_in(pages, app, pauses)
        pages.post(f"{at}&do=unpause")
        prepared_in(pages, app, pauses)
    assert found == [[(kind, "x&y", "ann")], []]


def prepared_in(
    pages: TestClient, app: App[Any], work: Callable[[Client], Awaitable[object]]
) -> None:
    """Do work in the event loop of the pages, where the store is open."""
    assert pages.portal is not None
    pages.portal.call(work, Client(app, by="ann"))


def test_without_an_app_it_shows_what_the_store_has_and_pauses_nothing(app: App[Any]) -> None:
    prepared(app, fill)
    prepared(app, lambda client: client.pause(schedule="nightly"))
    for pages in (create_app(app), create_app(app, app, read_only=True)):
        with TestClient(pages) as visitor:
            text = visitor.get("/service").text
            assert "/service/pause" not in text
            assert "paused by ann" in row(text, "schedule-nightly")
            assert "order" in row(text, "queue-order")
            at = "/service/pause?kind=queue&name=order&do=pause"
            assert visitor.get(at).status_code == visitor.post(at).status_code == 403
            assert "paused" not in row(visitor.get("/service").text, "queue-order")


def test_a_store_without_workers_has_a_service_page(tmp_path: Path) -> None:
    with TestClient(create_app(Checkpoints(FileStore(tmp_path)))) as pages:
        assert pages.get("/service").status_code == 200
