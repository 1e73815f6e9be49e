"""Log records: quiet by default, with the run and the step they are about, and none twice."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from effectflow import Do, Signal, ask, from_blocking, par, sleep, step, workflow
from effectflow.checkpoint import replaying
from effectflow.observe import ReplayFilter, RunFields, run_fields
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, app_on, cut_off
from tests.service.conftest import Service
from tests.service.lives import suspended

pytestmark = pytest.mark.anyio

pause: Signal[str] = Signal("pause", str)
shop = logging.getLogger("shop")
Lines = list[tuple[str, str, str, int]]


@pytest.fixture
def records() -> Iterator[list[Any]]:
    """The records that a handler with both filters has handled."""
    found: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    handler = Handler()
    handler.addFilter(RunFields())
    handler.addFilter(ReplayFilter())
    loggers = shop, logging.getLogger("effectflow")
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    yield found
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def of_shop(records: list[Any]) -> Lines:
    found = [one for one in records if one.name == "shop"]
    return [(one.getMessage(), one.run_id, one.step, one.attempt) for one in found]


def log_in_thread(_: object) -> None:
    shop.info("in a thread")


@step(errors=Broken)
async def charge(amount: int) -> int:
    shop.info("charging %d", amount)
    await from_blocking(log_in_thread)
    app = await ask(App)
    app.world.note(f"charge {amount}")
    return amount


@workflow
def checkout(amount: int) -> Do[App, Broken, int]:
    shop.info("begin")
    yield from charge(amount)
    shop.info("between")
    yield from charge(amount + 1)
    shop.info("end")
    return amount


async def test_records_of_user_code_name_run_step_and_attempt_and_are_not_repeated(
    records: list[Any],
) -> None:
    app = app_on(MemoryStore(), failing=["charge 6"])
    await checkout.start(5, run_id="c1").run(app)

    assert of_shop(records) == [
        ("begin", "c1", "", 0),
        ("charging 5", "c1", "charge", 1),
        ("in a thread", "c1", "charge", 1),
        ("between", "c1", "", 0),
        ("charging 6", "c1", "charge#2", 1),
        ("in a thread", "c1", "charge#2", 1),
    ]
    assert {one.workflow for one in records} == {"checkout"}
    first_worker = records[0].worker
    assert first_worker.startswith("pid ")
    records.clear()

    app.world.recover()
    await checkout.resume("c1").run_or_raise(app)
    assert of_shop(records) == [
        ("charging 6", "c1", "charge#2", 2),
        ("in a thread", "c1", "charge#2", 2),
        ("end", "c1", "", 0),
    ]
    assert records[0].worker != first_worker


async def test_branches_have_the_fields_of_their_steps(records: list[Any]) -> None:
    @workflow
    def both(_: None) -> Do[App, Broken, None]:
        yield from par(charge(1), charge(2))

    await both.start(None, run_id="b").run_or_raise(app_on(MemoryStore()))

    assert sorted(of_shop(records)) == [
        ("charging 1", "b", "par[0]/charge", 1),
        ("charging 2", "b", "par[1]/charge", 1),
        ("in a thread", "b", "par[0]/charge", 1),
        ("in a thread", "b", "par[1]/charge", 1),
    ]


async def test_a_run_within_a_step_has_its_own_fields(records: list[Any]) -> None:
    @step
    async def outer() -> None:
        app = await ask(App)
        await checkout.start(5, run_id="inner").run_or_raise(app)
        shop.info("after")

    @workflow
    def around(_: None) -> Do[App, object, None]:
        yield from outer()

    await around.start(None, run_id="around").run_or_raise(app_on(MemoryStore()))
    lines = of_shop(records)
    assert lines[0] == ("begin", "inner", "", 0)
    assert lines[1] == ("charging 5", "inner", "charge", 1)
    assert lines[-1] == ("after", "around", "outer", 1)


async def test_outside_of_runs_the_fields_are_empty_and_extra_wins(records: list[Any]) -> None:
    shop.info("nothing runs")
    shop.info("chosen", extra={"run_id": "mine"})

    assert of_shop(records) == [("nothing runs", "", "", 0), ("chosen", "mine", "", 0)]
    assert records[0].worker == records[0].workflow == ""


async def test_what_a_store_logs_during_a_replay_is_new(records: list[Any]) -> None:
    @workflow
    def noisy(_: None) -> Do[App, Broken, None]:
        for name in ("effectflow.stores.some", "effectflow.effects.some", "effectflower"):
            logging.getLogger(name).error("from %s", name)
        yield from charge(1)

    app = app_on(MemoryStore(), failing=["charge 1"])
    logging.getLogger("effectflower").addHandler(shop.handlers[-1])
    try:
        await noisy.start(None, run_id="n1").run(app)
        assert len([one for one in records if one.name != "shop"]) == 3
        records.clear()
        await noisy.resume("n1").run(app)
    finally:
        logging.getLogger("effectflower").handlers.clear()
    assert [one.name for one in records if one.name != "shop"] == ["effectflow.stores.some"]


async def test_a_plan_logs_nothing(records: list[Any]) -> None:
    app = app_on(MemoryStore(), failing=["charge 6"])
    await checkout.start(5, run_id="c1").run(app)
    records.clear()
    await checkout.plan("c1").run_or_raise(app)
    assert records == []


@workflow
def rests(_: None) -> Do[App, object, None]:
    shop.info("before the wait")
    yield from sleep(3600)


async def test_records_of_a_worker_about_a_run_have_its_fields(
    records: list[Any], store: MemoryStore
) -> None:
    service = Service(store)
    async with service.worker(rests, suspend_after=0) as worker:
        await worker.client.submit(rests, run_id="r1")
        await suspended(service, "r1")
        await worker.idle()
    about = [one for one in records if one.run_id == "r1"]
    assert [one.getMessage() for one in about] == [
        "run 'r1' of 'rests' is taken, pending",
        "before the wait",
        "run 'r1' of 'rests' is released, suspended, waits for a time",
    ]
    assert len({one.worker for one in about}) == 1
    assert {one.workflow for one in about} == {"rests"}
    # What is about no run has no fields of one.
    assert all("steps in progress" in one.getMessage() for one in records if one not in about)


async def test_a_task_that_serves_all_runs_does_not_log_for_the_one_that_started_it(
    records: list[Any],
) -> None:
    class Unwatched(MemoryStore):
        def changes(self) -> Any:
            raise ConnectionError("no changes")

    @workflow
    def waits(_: None) -> Do[App, object, str]:
        return (yield from pause.wait())

    async with Unwatched() as store:
        await cut_off(waits.start(None, run_id="w1"), app_on(store))
    [warning] = [one for one in records if "cannot be watched" in one.getMessage()]
    assert warning.run_id == ""


async def test_structlog_takes_the_same_fields() -> None:
    lines: list[Any] = []

    def with_run(_logger: Any, _method: str, event: Any) -> Any:
        if replaying():
            raise structlog.DropEvent
        return {**run_fields(), **event}

    def keep(_logger: Any, _method: str, event: Any) -> Any:
        lines.append(event)
        raise structlog.DropEvent

    logger = structlog.wrap_logger(None, processors=[with_run, keep])

    @workflow
    def logs(_: None) -> Do[App, Broken, None]:
        logger.info("begin", item="cap")
        yield from charge(1)

    app = app_on(MemoryStore(), failing=["charge 1"])
    await logs.start(None, run_id="s1").run(app)
    app.world.recover()
    await logs.resume("s1").run_or_raise(app)
    assert [(one["event"], one["item"], one["run_id"]) for one in lines] == [("begin", "cap", "s1")]


def test_nothing_is_printed_unless_logging_is_configured() -> None:
    program = (
        "import effectflow, logging\n"
        "logging.getLogger('effectflow.stores').warning('quiet')\n"
        "logging.getLogger('shop').warning('loud')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stderr == "loud\n"
