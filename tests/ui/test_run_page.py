from __future__ import annotations

import gc
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient

from effectflow import (
    App,
    Checkpoints,
    Client,
    Do,
    Effect,
    Handle,
    Queue,
    Signal,
    Worker,
    compensate,
    do,
    effect,
    fail,
    pure,
    saga,
    step,
    workflow,
)
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointStore,
    Completed,
    Entry,
    RunInfo,
    RunStatus,
    RunSummary,
    Started,
)
from effectflow.checkpoint.journal_reader import Journal
from effectflow.observe.recorded_run import RecordedRun
from effectflow.observe.workers import KnownWorker, save_worker
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.ui import create_app
from effectflow.ui.steps import View, steps_of
from tests.ui.small_app import Environment, html_of


class Declined(Exception):
    """The bank declines."""


approval = Signal("approval", bool)


@step
def reserve(item: str) -> Effect[object, Declined, str]:
    return pure(f"reservation of {item}")


@step
def release(_: str) -> Effect[object, Declined, None]:
    return pure(None)


@step
def charge(price: int) -> Effect[object, Declined, int]:
    return fail(Declined("<b>no</b> money")) if price < 0 else pure(price)


@step(at_most_once=True)
@effect
async def pay(_: Environment, price: int) -> int:
    raise KeyboardInterrupt


@do
def ordered(price: int) -> Do[Environment, Declined, int]:
    yield from compensate(reserve("cat"), release)
    if price > 100:
        yield from approval.wait()
    return (yield from charge(price))


@workflow
def order(price: int) -> Do[Environment, Declined, int]:
    return (yield from saga(ordered(price)))


@workflow
def paid(price: int) -> Do[Environment, Declined, int]:
    return (yield from pay(price))


@workflow
def counting(count: int) -> Do[Environment, Declined, int]:
    for price in range(count):
        yield from charge(price)
    return count


def shop_on(store: CheckpointStore, **options: Any) -> App[Environment]:
    checkpoints = Checkpoints(store, **options)
    return App([order, paid, counting], environment=Environment, checkpoints=checkpoints)


@pytest.fixture
def app() -> App[Environment]:
    return shop_on(MemoryStore())


def drive(app: App[Environment], work: Callable[[Client], Awaitable[Any]]) -> None:
    """Do something beside a worker."""

    async def beside() -> None:
        async with Worker(app) as worker:
            await work(worker.client)

    anyio.run(beside)


def order_of(price: int, run_id: str) -> Callable[[Client], Awaitable[Any]]:
    """Return what submits an order and waits for its end."""

    async def work(client: Client) -> None:
        handle = await client.submit(order, price, run_id=run_id)
        await handle.result(10)

    return work


def actions_in(page: str) -> list[str]:
    return re.findall(r"/run/act/([a-z-]+)\?", page)


def test_a_request_that_its_process_has_not_taken_is_told(app: App[Environment]) -> None:
    async def ask() -> None:
        async with Client(app, by="ann") as client:
            handle = await client.submit(order, 1, run_id="held")
            await client.checkpoints.store.claim("held", owner="another process", seconds=60)
            await handle.pause()
            await handle.cancel()

    anyio.run(ask)
    text = html_of(app, "/run?id=held")
    for action in ("pause", "cancel"):
        assert re.search(rf"Asked to {action} by ann at .*\. Its process carries that out\.", text)


def test_the_header_says_why_a_run_has_failed_and_at_which_step(app: App[Environment]) -> None:
    drive(app, order_of(-1, "order-1"))
    page = html_of(app, "/run?id=order-1")
    assert "It has failed. Its failure stands" in page
    assert '<a href="/run?id=order-1&step=charge#step">charge</a>' in page
    assert "2 completed of 3" in page
    assert "effectflow fork order-1 --at charge" in page
    assert {"retry", "cancel", "fork", "rerun", "delete"} <= {*actions_in(page)}


def test_a_long_name_of_a_step_is_short_in_texts_and_whole_in_links() -> None:
    name = f"{'long' * 2500}-name"

    @step(name=name)
    def failing(_: int) -> Effect[object, Declined, int]:
        return fail(Declined("no"))

    @workflow
    def fails(number: int) -> Do[Environment, Declined, int]:
        return (yield from failing(number))

    app = App([fails], environment=Environment, checkpoints=Checkpoints(MemoryStore()))

    async def work(client: Client) -> None:
        await (await client.submit(fails, 1, run_id="run")).result(10)

    drive(app, work)
    label = f"{name[:80]}…{name[-80:]}"
    page = html_of(app, "/run?id=run")
    assert f'<a href="/run?id=run&step={name}#step">{label}</a>' in page
    assert f">Execute {name[:72]}…" in html_of(app, "/run/act/fork?id=run")
    assert "This run has no step" not in html_of(app, f"/run?id=run&step={name}")
    assert len(html_of(app, "/run/history?id=run")) < 30_000


def test_pages_that_only_show_offer_no_actions(app: App[Environment]) -> None:
    drive(app, order_of(-1, "order-1"))
    assert not actions_in(html_of(app, "/run?id=order-1", is_served_with_app=False))


def test_what_a_store_has_is_shown_as_text(app: App[Environment]) -> None:
    drive(app, order_of(-1, "<i>\u202e"))
    with TestClient(create_app(app)) as browser:
        page = browser.get("/run", params={"id": "<i>\u202e"}).text
    assert "&lt;i&gt;\\u202e" in page
    assert "&lt;b&gt;no&lt;/b&gt; money" in page
    # Forms send the id as it is.
    assert not re.findall("<[ib]>|\u202e", re.sub('(value|id)="[^"]*"', "", page))


def test_a_run_that_waits_for_a_signal_offers_to_send_it(app: App[Environment]) -> None:
    async def work(client: Client) -> None:
        handle = await client.submit(order, 500, run_id="order-1", key="acme", priority=3)
        await until(handle, RunStatus.SUSPENDED)

    drive(app, work)
    page = html_of(app, "/run?id=order-1")
    assert "It waits for signal approval." in page
    assert 'href="/run/act/signal?id=order-1"' in page
    assert "keep the 1 completed step; only the code of the workflow tells" in page
    assert "acme" in page


def test_a_run_that_waits_in_a_queue_shows_the_limits_of_it() -> None:
    checkpoints = Checkpoints(MemoryStore())
    queues = [Queue("slow", limit=0), Queue("order", limit=3, per_key=1)]
    app = App([order], environment=Environment, checkpoints=checkpoints, queues=queues)

    async def submit() -> None:
        async with Client(app) as client:
            await client.submit(order, 5, run_id="order-1", queue="slow")
            await client.submit(order, 5, run_id="order-2")

    anyio.run(submit)
    assert "slow: 0 at once" in html_of(app, "/run?id=order-1")
    assert "order: 3 at once, 1 of a key" in html_of(app, "/run?id=order-2")


@pytest.mark.parametrize(
    ("limits", "key", "reason"),
    [
        ({"limit": 0}, "", "It is due, but the limit of queue 'order' is 0."),
        ({"limit": 2}, "", "queue 'order' has 2 runs in progress, and its limit is 2."),
        ({"limit": 3}, "", "continues as soon as a worker takes it."),
        (
            {"per_key": 1},
            "acme",
            "has 1 run with its key in progress, and the limit of a key is 1.",
        ),
        ({"per_key": 2}, "acme", "continues as soon as a worker takes it."),
        ({"per_key": 1}, "other", "continues as soon as a worker takes it."),
        ({"per_key": 1}, "", "continues as soon as a worker takes it."),
        ({"per_second": 1}, "acme", "continues as soon as a worker takes it."),
    ],
)
def test_the_header_says_that_a_run_waits_for_room_in_its_queue(
    limits: dict[str, Any], key: str, reason: str
) -> None:
    store, queue = MemoryStore(), Queue("order", **limits)
    app = App(
        [order, paid], environment=Environment, checkpoints=Checkpoints(store), queues=[queue]
    )

    async def submit() -> None:
        async with Client(app) as client:
            now = time.time()
            await save_worker(
                store, KnownWorker("pid 4 on far/x (b, c)", 5, {"order": "1"}, now, now)
            )
            held = {"held-1": (order, "acme"), "held-2": (order, "others"), "else": (paid, "acme")}
            for run_id, (kind, its_key) in held.items():
                await client.submit(kind, 5, run_id=run_id, key=its_key)
                await store.claim(run_id, owner="another process", seconds=60)
            await client.submit(order, 5, run_id="waits", key=key)

    anyio.run(submit)
    assert reason in html_of(app, "/run?id=waits")


def test_the_header_says_how_far_the_undos_of_a_cancelled_run_have_got(
    app: App[Environment],
) -> None:
    async def work(client: Client) -> None:
        handle = await client.submit(order, 500, run_id="order-1")
        await until(handle, RunStatus.SUSPENDED)
        await handle.cancel()
        await until(handle, RunStatus.CANCELLED)

    drive(app, work)
    assert "1 step to undo its work has completed" in html_of(app, "/run?id=order-1")


async def until(handle: Handle[Any, Any], status: RunStatus) -> None:
    with anyio.fail_after(10):
        while await handle.status() is not status:
            await anyio.sleep(0.01)


def test_an_unknown_outcome_shows_its_idempotency_key_and_how_to_settle_it(
    app: App[Environment],
) -> None:
    async def crash() -> None:
        with pytest.raises(KeyboardInterrupt):
            await paid.start(5, run_id="order-1").run(Environment(app.checkpoints))

    anyio.run(crash)
    page = html_of(app, "/run?id=order-1")
    assert "<code>order-1:pay</code>" in page
    assert 'href="/run/act/complete-step?id=order-1&step=pay"' in page
    assert 'href="/run/act/fork?id=order-1&at=pay"' in page


def test_a_damaged_run_shows_what_is_intact_and_what_to_do(tmp_path: Path) -> None:
    app = shop_on(SqliteStore(tmp_path / "runs.db"))
    drive(app, order_of(5, "order-1"))
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        change = """replace(CAST(body AS TEXT), 'reservation of cat', 'reservation of dog')"""
        database.execute(f"UPDATE entries SET body = CAST({change} AS BLOB)")
        database.commit()
    page = html_of(app, "/run?id=order-1")
    assert "entry 4 of run 'order-1' cannot be read" in page
    assert "after its 3 intact entries" in page
    assert "`effectflow repair order-1`" in page
    assert actions_in(page) == ["delete"]


def labels_in(page: str) -> list[str]:
    """Return the labels of the rows of steps."""
    rows = re.findall(r'<th scope="row"[^>]*>(.*?)</th>', page, re.DOTALL)
    return [re.sub("<[^>]*>", "", row).strip() for row in rows]


def test_steps_stand_beside_their_times_and_lead_to_their_panels(app: App[Environment]) -> None:
    drive(app, order_of(-1, "order-1"))
    page = html_of(app, "/run?id=order-1")
    assert labels_in(page) == ["This run", "reserve", "charge", "release"]
    assert 'href="/run?id=order-1&step=reserve#step"' in page
    assert page.count('<rect class="bar completed"') == 3, "two steps, and the legend"
    assert labels_in(html_of(app, "/run?id=order-1&show=failed")) == ["This run", "charge"]
    assert labels_in(html_of(app, "/run?id=order-1&find=REL")) == ["This run", "release"]


def test_the_panel_of_a_step_shows_its_input_output_error_and_key(app: App[Environment]) -> None:
    drive(app, order_of(-1, "order-1"))
    reserved = html_of(app, "/run?id=order-1&step=reserve")
    assert "(item='cat')" in reserved
    assert "<pre tabindex=\"0\">'reservation of cat'</pre>" in reserved
    assert "<code>order-1:reserve</code>" in reserved
    charged = html_of(app, "/run?id=order-1&step=charge")
    assert "Declined: <b>no</b> money</p>" in charged
    assert "complete-step" in actions_in(charged)
    assert "This run has no step nowhere" in html_of(app, "/run?id=order-1&step=nowhere")


@pytest.fixture(scope="module")
def long_run() -> App[Environment]:
    """An App with a run of 400 steps in one flow."""
    app = shop_on(MemoryStore())
    environment = Environment(app.checkpoints)

    async def start() -> None:
        await counting.start(400, run_id="long").run(environment)

    anyio.run(start)
    return app


def test_a_long_run_is_shown_by_its_flows_and_by_pages_of_steps(long_run: App[Environment]) -> None:
    assert labels_in(html_of(long_run, "/run?id=long")) == ["This run", "main flow"]
    second = html_of(long_run, "/run?id=long&by=steps&first=150")
    assert labels_in(second)[1] == "charge#151"
    assert "Rows 151 to 300 of 400" in second
    chosen = html_of(long_run, "/run?id=long&step=charge%23399")
    assert "charge#399" in labels_in(chosen)


def test_a_page_leaves_nothing_of_its_run_in_memory(
    app: App[Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even until the next garbage collection: a browser that watches a page renews it each second."""
    monkeypatch.setattr("effectflow.observe.recent_runs.MOST_BYTES", 0)
    drive(app, order_of(5, "order-1"))
    with TestClient(create_app(app, app)) as pages:
        gc.collect()
        gc.disable()
        try:
            for path in ("", "/history", "/data", "/drawing", "/act/fork", "/act/delete"):
                assert pages.get(f"/run{path}?id=order-1").status_code == 200
                assert not [one for one in gc.get_objects() if isinstance(one, RecordedRun)], path
        finally:
            gc.enable()


def test_long_names_of_steps_make_no_page_large() -> None:
    entries: list[Entry] = [Started("r", "order", "standard", "1", "", None, {}, 1, 0.0)]
    for number in range(1, 2001):
        step, at = f"{'x' * 300}#{number}", float(number)
        entries += [BeforeStep(step, at=at, turn=number)]
        entries += [Completed(step, None, 0.5, at=at + 0.5, turn=number)]
    info = RunInfo("r", RunSummary("order", RunStatus.RUNNING, 0.0), 0.0, len(entries), None)
    run = RecordedRun(info, Journal(tuple(entries), b""))
    [flow] = steps_of(run, View(by="flows"), 3000.0).rows
    assert len(flow.bars) > 100
    assert sum(len(bar.path) + len(bar.title) for bar in flow.bars) < 500_000


def test_a_part_of_the_time_has_only_the_steps_within(long_run: App[Environment]) -> None:
    page = html_of(long_run, "/run?id=long&by=steps")
    began, ended = map(float, re.findall(r'data-(?:from|to)="([0-9.]+)"', page))
    middle = (began + ended) / 2
    later = html_of(long_run, f"/run?id=long&by=steps&from={middle}")
    total = (
        int(re.findall(r"of (\d+)\.", later)[0]) if "Rows" in later else len(labels_in(later)) - 1
    )
    assert 0 < total < 400
    assert "charge#400" in html_of(long_run, f"/run?id=long&by=steps&from={middle}&find=%23400")


@pytest.mark.parametrize("query", ["from=soon", "first=-1", "to=nan", "by=colour", "show=all"])
def test_a_query_that_makes_no_sense_is_refused(app: App[Environment], query: str) -> None:
    drive(app, order_of(5, "order-1"))
    with TestClient(create_app(app)) as browser:
        assert browser.get(f"/run?id=order-1&{query}").status_code == 400


def test_a_page_reads_only_what_was_added_and_notices_another_run_with_the_id(
    app: App[Environment],
) -> None:
    drive(app, order_of(5, "order-1"))
    with TestClient(create_app(app, app)) as browser:
        assert "It is complete" in browser.get("/run?id=order-1").text

        async def replace() -> None:
            await app.checkpoints.store.delete("order-1")

        anyio.run(replace)
        assert browser.get("/run?id=order-1").status_code == 404
        drive(app, order_of(-1, "order-1"))
        assert "It has failed" in browser.get("/run?id=order-1").text
