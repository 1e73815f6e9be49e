"""What a service cannot use is rejected where it is given, with the way out."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from effectflow import Checkpoints, Client, Do, Signal, publish, workflow
from effectflow.checkpoint import CheckpointStore
from effectflow.checkpoint.store import Queue
from effectflow.service import App, BadEnvironment, Schedule, Worker
from effectflow.stores import MemoryStore
from tests import apps
from tests.apps import Broken, note
from tests.service.conftest import Service

pytestmark = pytest.mark.anyio

approval = Signal("approval", bool)


@workflow
def act(action: str) -> Do[apps.App, Broken, int]:
    return (yield from note(action))


STORE: CheckpointStore = MemoryStore()
CHECKPOINTS = Checkpoints(STORE)
APP = App([act], environment=apps.App, checkpoints=CHECKPOINTS)


def test_a_client_takes_an_app() -> None:
    assert Client(APP).checkpoints is CHECKPOINTS


@pytest.mark.parametrize("given", [STORE, act])
def test_a_client_takes_nothing_without_checkpoints(given: Any) -> None:
    with pytest.raises(TypeError, match=r"a Client takes an App, or Checkpoints\(store\)"):
        Client(given)


@pytest.mark.parametrize("given", [act, [act], CHECKPOINTS])
def test_a_worker_takes_an_app(given: Any) -> None:
    with pytest.raises(TypeError, match="a Worker takes an App, such as App"):
        Worker(given)


@pytest.mark.parametrize("given", [-1, math.nan, timedelta(seconds=-1)])
@pytest.mark.parametrize("name", ["grace", "suspend_after"])
def test_a_worker_never_waits_for_a_negative_time(name: str, given: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 0 seconds or more"):
        Worker(APP, **{name: given})


def test_the_queues_of_an_app_are_queues() -> None:
    def app(*queues: Any) -> App[apps.App]:
        return App([act], environment=apps.App, checkpoints=Checkpoints(STORE), queues=queues)

    with pytest.raises(
        TypeError, match=r"the queues of an App are Queue\(name, limit=...\), not 'act'"
    ):
        app("act")
    with pytest.raises(ValueError, match="two queues named 'act'"):
        app(Queue("act", 1), Queue("act", per_key=2))
    with pytest.raises(ValueError, match="per_second must be a finite number above 0, not inf"):
        Queue("act", per_second=math.inf)
    with pytest.raises(ValueError, match="per_key must be an int >= 1, not 0"):
        Queue("act", per_key=0)
    with pytest.raises(ValueError, match="the name of a queue is that"):
        Queue("", per_key=1)
    with pytest.raises(TypeError, match="priority must be an int, not 'high'"):
        Queue("act", priority="high")  # pyright: ignore[reportArgumentType]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"queue": 3}, "queue is text, not 3"),
        ({"key": "\ud800"}, "key has a lone surrogate"),
        ({"key": "k" * 201}, "key must have at most 200 bytes"),
    ],
)
async def test_a_queue_and_a_key_are_texts_that_all_stores_can_sort_by(
    wrong: dict[str, Any], said: str
) -> None:
    client = Client(Checkpoints(MemoryStore()))
    with pytest.raises((TypeError, ValueError), match=said):
        await client.submit(act, "a", **wrong)
    assert await client.find() == []


@pytest.mark.anyio
async def test_a_pause_names_one_thing() -> None:
    client = Client(Checkpoints(MemoryStore()))
    with pytest.raises(TypeError, match="name one of queue=, workflow=, schedule="):
        await client.pause()
    with pytest.raises(TypeError, match="name one of queue=, workflow=, schedule="):
        await client.unpause(queue="a", workflow="b")


def test_an_app_takes_checkpoints_and_a_function_that_makes_its_environment() -> None:
    given: Any = STORE
    with pytest.raises(TypeError, match=r"the checkpoints of an App are Checkpoints\(store\)"):
        App([act], environment=apps.App, checkpoints=given)
    given = apps.App(CHECKPOINTS)
    with pytest.raises(TypeError, match="environment=lambda checkpoints"):
        App([act], environment=given, checkpoints=CHECKPOINTS)


def test_a_schedule_takes_a_workflow_and_a_signal_a_name() -> None:
    given: Any = act.body
    with pytest.raises(TypeError, match="a Schedule takes a workflow"):
        Schedule(given, "* * * * *")
    given = 5
    with pytest.raises(TypeError, match="the name of a signal is text, not 5"):
        Signal(given, int)
    with pytest.raises(ValueError, match="needs a name"):
        Signal("", int)
    assert repr(Signal("review", int)) == "Signal('review', int)"


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"cron": 5}, "the cron expression"),
        ({"timezone": 1}, "the time zone"),
        ({"name": 4}, "the name"),
    ],
)
def test_a_schedule_takes_texts(wrong: Any, what: str) -> None:
    with pytest.raises(TypeError, match=f"{what} of a schedule is text"):
        Schedule(act, **{"cron": "* * * * *", "input": "a"} | wrong)


@pytest.mark.parametrize("make", [lambda text: Signal(text, int), lambda text: publish(text, 1)])
def test_a_value_that_no_store_can_hold_is_rejected_before_it_is_sent(
    make: Callable[[str], object],
) -> None:
    with pytest.raises(ValueError, match="has a lone surrogate"):
        make("\ud800")


async def test_a_client_finds_by_a_query(service: Service) -> None:
    given: Any = "act"
    with pytest.raises(TypeError, match=r"find takes a RunQuery, .* not 'act'"):
        await service.client.find(given)


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, timedelta(days=-1)])
async def test_a_run_cannot_be_delayed_by_a_negative_or_infinite_time(
    service: Service, delay: Any
) -> None:
    with pytest.raises(ValueError, match="delay must be a finite number of seconds, 0 or more"):
        await service.client.submit(act, "a", delay=delay)
    assert await service.client.find() == []


@pytest.mark.parametrize("priority", ["high", 1.5, None, True, 2**31])
async def test_a_priority_is_a_number_that_every_store_can_keep(
    service: Service, priority: Any
) -> None:
    with pytest.raises(ValueError, match="priority must be an int of 32 bits"):
        await service.client.submit(act, "a", priority=priority)
    assert await service.client.find() == []


async def test_a_run_may_be_delayed_beyond_the_last_year_of_the_calendar(service: Service) -> None:
    await service.client.submit(act, "a", delay=timedelta.max)
    [info] = await service.client.find()
    assert info.summary.due_at is not None
    assert info.summary.due_at < 2.6e11


@pytest.mark.parametrize("given", ["act", act.body])
async def test_a_client_submits_and_finds_runs_of_workflows(service: Service, given: Any) -> None:
    with pytest.raises(TypeError, match="a Client takes a workflow"):
        await service.client.submit(given, "a")
    with pytest.raises(TypeError, match="a Client takes a workflow"):
        service.client.handle(given, "r")


async def test_a_handle_sends_signals_with_keys_of_text(service: Service) -> None:
    handle = await service.client.submit(act, "a")
    given: Any = "approval"
    with pytest.raises(TypeError, match="send takes the Signal that the workflow waits for"):
        await handle.send(given, True)
    given = 5
    with pytest.raises(TypeError, match="an idempotency key is text, not 5"):
        await handle.send(approval, True, idempotency_key=given)
    with pytest.raises(ValueError, match="an idempotency key has a lone surrogate"):
        await handle.send(approval, True, idempotency_key="\ud800")


async def test_a_worker_can_be_entered_again_after_its_environment_could_not_be_made(
    service: Service,
) -> None:
    attempts: list[int] = []

    def environment(checkpoints: Checkpoints) -> apps.App:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("no database")
        return apps.App(checkpoints, service.world)

    worker = Worker(App([act], environment=environment, checkpoints=service.checkpoints()))
    with pytest.raises(BadEnvironment, match="no database"):
        async with worker:
            pytest.fail("the worker began")
    async with worker:
        handle = await worker.client.submit(act, "a")
        assert (await handle.result(timeout=10)).unwrap() == 1


@pytest.mark.parametrize("run_id", ["", " ", "r\n1", "r\x1b[31m"])
async def test_the_id_of_a_submitted_run_is_visible_text(run_id: str) -> None:
    client = Client(Checkpoints(MemoryStore()))
    with pytest.raises(ValueError, match="cannot be the id of a run: use text with at least one"):
        await client.submit(act, "a", run_id=run_id)
    assert await client.find() == []


@pytest.mark.parametrize("name", [" ", "nightly\n"])
def test_the_name_of_a_schedule_can_begin_a_run_id(name: str) -> None:
    with pytest.raises(ValueError, match="the name of a schedule begins the ids of its runs, and"):
        Schedule(act, "@daily", input="a", name=name)
