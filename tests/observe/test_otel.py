"""OpenTelemetry: one trace for a run over all its lives, and what the metrics count."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Never

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from effectflow import (
    App,
    Checkpoints,
    Client,
    Do,
    Effect,
    Signal,
    SqliteStore,
    Worker,
    ask,
    from_blocking,
    par,
    sleep,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import (
    Batch,
    CheckpointEvent,
    Encryption,
    Lease,
    LifeBegan,
    LifeEnded,
    RunStatus,
    read_entries,
)
from effectflow.checkpoint.entries import Resumed, Started
from effectflow.effects import from_fn
from effectflow.executors import ProcessExecutor
from effectflow.observe import OpenTelemetry, run_fields
from effectflow.stores import MemoryStore
from effectflow.testing import RecordingObserver
from tests import apps
from tests.apps import Broken, app_on, cut_off, note
from tests.observe.traced import Shop, checkout as killed_checkout
from tests.programs import Program, ran
from tests.service.conftest import Service
from tests.service.lives import suspended

pytestmark = pytest.mark.anyio


@dataclass
class Telemetry:
    """An observer, and what it has exported."""

    spans: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.meters = MeterProvider([self.reader])
        self.observer = OpenTelemetry(self.provider, self.meters)

    def ended(self, name: str | None = None) -> list[Any]:
        """Return the spans that have ended, without saves unless they are asked for."""
        found = self.spans.get_finished_spans()
        return [one for one in found if (one.name != "save" if name is None else one.name == name)]

    def one(self, name: str) -> Any:
        [span] = self.ended(name)
        return span

    def points(self, name: str) -> list[Any]:
        data: Any = self.reader.get_metrics_data()
        found = data.resource_metrics[0].scope_metrics[0].metrics if data else ()
        return [
            point for metric in found if metric.name == name for point in metric.data.data_points
        ]

    def counted(self, name: str) -> dict[Any, float]:
        """Return the values of a metric by the last of its attributes."""
        return {[*one.attributes.values()][-1]: one.value for one in self.points(name)}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.provider.shutdown()
    made.meters.shutdown()


def parent_of(span: Any) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: Any) -> int:
    return span.get_span_context().span_id


def linked(span: Any) -> list[int]:
    return [link.context.span_id for link in span.links]


def traces(spans: list[Any]) -> set[int]:
    return {one.get_span_context().trace_id for one in spans}


INSTRUMENTED = "GET /price"


def library_call(_: object = None) -> None:
    """What an instrumented library does."""
    CALLS.append(get_current_span().get_span_context().span_id)


CALLS: list[int] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


@step(errors=Broken)
async def charge(amount: int) -> int:
    library_call()
    await from_blocking(library_call)
    await note(f"charge {amount}")
    return amount


@workflow
def buy(amount: int) -> Do[apps.App, Broken, int]:
    yield from charge(amount)
    yield from charge(amount + 1)
    return amount


async def test_a_run_is_one_trace_below_its_caller_with_a_link_to_the_life_before(
    telemetry: Telemetry, store: MemoryStore
) -> None:
    app = app_on(store, failing=["charge 6"], observers=[telemetry.observer])
    tracer = telemetry.provider.get_tracer("web")
    with tracer.start_as_current_span("request") as request:
        await buy.start(5, run_id="b1").run(app)
    first = telemetry.one("run buy")
    assert parent_of(first) == request.get_span_context().span_id
    assert [span.name for span in telemetry.ended()] == [
        "step charge",
        "step charge",
        "run buy",
        "request",
    ]
    assert first.attributes["effectflow.status"] == "failed"
    assert first.status.status_code is StatusCode.ERROR
    failed = telemetry.ended("step charge")[1]
    assert failed.status.description.endswith("Broken: charge 6#1")
    assert failed.attributes["effectflow.step"] == "charge#2"

    telemetry.spans.clear()
    app.world.recover()
    await buy.resume("b1").run_or_raise(app)
    await buy.resume("b1").run_or_raise(app)
    # Nothing for the step that was skipped, and nothing for a run that is complete.
    [again, second] = telemetry.ended()
    assert (again.name, again.attributes["effectflow.attempt"]) == ("step charge", 2)
    assert parent_of(second) == request.get_span_context().span_id
    assert linked(second) == [id_of(first)]
    assert traces([first, second, again, request]) == {request.get_span_context().trace_id}


async def test_the_span_of_an_attempt_is_current_in_the_code_of_its_step(
    telemetry: Telemetry, store: MemoryStore
) -> None:
    app = app_on(store, observers=[telemetry.observer])

    @workflow
    def both(_: None) -> Do[apps.App, Broken, None]:
        library_call()
        yield from par(charge(1), charge(2))
        library_call()

    await both.start(None).run_or_raise(app)
    life, attempts = id_of(telemetry.one("run both")), telemetry.ended("step charge")
    between = [CALLS[0], CALLS[-1]]
    assert between == [life, life]
    assert sorted(CALLS[1:-1]) == sorted(2 * [id_of(one) for one in attempts])
    assert {parent_of(one) for one in attempts} == {life}
    assert get_current_span().get_span_context().is_valid is False


async def test_without_a_caller_all_lives_are_one_trace(
    telemetry: Telemetry, store: MemoryStore
) -> None:
    app = app_on(store, failing=["charge 5"], observers=[telemetry.observer])
    for _ in range(3):
        await buy.start(5, run_id="b1", retry_failed=True).run(app)
    start, lives = telemetry.one("start buy"), telemetry.ended("run buy")
    assert len(lives) == 3
    assert {parent_of(one) for one in lives} == {id_of(start)}
    assert [linked(one) for one in lives] == [[], [id_of(lives[0])], [id_of(lives[1])]]
    assert len(traces(telemetry.ended())) == 1


async def test_a_header_in_the_context_of_the_run_is_its_parent(
    telemetry: Telemetry, store: MemoryStore
) -> None:
    app = app_on(store, observers=[telemetry.observer])
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await buy.start(5, context={"traceparent": header, "tenant": 7}).run_or_raise(app)
    life = telemetry.one("run buy")
    assert parent_of(life) == 0xB7AD6B7169203331
    assert not telemetry.ended("start buy")


pause: Signal[str] = Signal("pause", str)


@workflow
def child(amount: int) -> Do[apps.App, Broken, int]:
    return (yield from charge(amount))


@workflow
def parent(_: None) -> Do[apps.App, Broken, str]:
    spawned = yield from spawn(child, 1)
    yield from spawned.result()
    return (yield from pause.wait())


async def test_workers_children_and_waits(telemetry: Telemetry, store: MemoryStore) -> None:
    service = Service(store)
    app = service.app(parent, child)
    observed = Checkpoints(store, observers=[telemetry.observer])
    with telemetry.provider.get_tracer("web").start_as_current_span("request") as request:
        handle = await Client(observed).submit(parent, run_id="p1")
    async with Worker(app, suspend_after=0.0, observers=[telemetry.observer]) as worker:
        waiting = await suspended(service, "p1", waits_for="signal pause")
        await worker.client.handle(parent, "p1").send(pause, "go on")
        await handle.result(timeout=10)
        await worker.idle()
    assert waiting.summary.status is RunStatus.SUSPENDED

    lives, [childs] = telemetry.ended("run parent"), telemetry.ended("run child")
    assert {parent_of(one) for one in lives} == {request.get_span_context().span_id}
    assert all(one.kind is SpanKind.CONSUMER for one in lives)
    for before, after in pairwise(lives):
        assert linked(after) == [id_of(before)]
    # The life of the parent that has spawned the child is its parent.
    assert parent_of(childs) == id_of(lives[0])
    assert len(traces(telemetry.ended())) == 1
    waits = {one.attributes["effectflow.waits_for"] for one in telemetry.ended("wait")}
    assert "signal pause" in waits

    counted = {
        tuple(one.attributes.values()): one.value for one in telemetry.points("effectflow.runs")
    }
    assert counted["parent", "suspended"] == len(lives) - 1
    assert counted["parent", "completed"] == counted["child", "completed"] == 1
    assert sum(one.value for one in telemetry.points("effectflow.runs.driven")) == 0
    delays = telemetry.points("effectflow.queue.delay")
    assert sum(one.count for one in delays) == len(lives) + 1
    assert all(one.max < 10 for one in delays)


class Slow(MemoryStore):
    """A store whose appends take long enough to have spans."""

    async def append(self, lease: Lease, batch: Batch) -> None:
        await anyio.sleep(0.003)
        await super().append(lease, batch)


async def test_steps_and_saves_are_measured(telemetry: Telemetry) -> None:
    store = Slow()
    app = app_on(store, failing=["charge 6"], observers=[telemetry.observer])
    await buy.start(5, run_id="b1").run(app)
    durations = telemetry.points("effectflow.step.duration")
    assert {tuple(one.attributes.values()): one.count for one in durations} == {
        ("buy", "charge", "completed"): 1,
        ("buy", "charge", "failed"): 1,
    }
    [saves] = telemetry.points("effectflow.save.duration")
    assert saves.count == len(telemetry.ended("save")) >= 3
    ids = {id_of(one) for one in telemetry.ended()}
    assert {parent_of(one) for one in telemetry.ended("save")} <= ids


async def test_a_step_that_is_cut_off_is_no_error(telemetry: Telemetry, store: MemoryStore) -> None:
    @step
    async def forever() -> None:
        await sleep(3600)

    @workflow
    def endless(_: None) -> Do[apps.App, object, None]:
        yield from forever()

    await cut_off(endless.start(None, run_id="e1"), app_on(store, observers=[telemetry.observer]))
    attempt = telemetry.one("step forever")
    assert attempt.attributes["effectflow.outcome"] == "interrupted"
    assert attempt.status.status_code is StatusCode.UNSET
    assert telemetry.one("run endless").attributes["effectflow.status"] == "interrupted"


async def test_the_texts_of_encrypted_errors_stay_in_the_journal(
    telemetry: Telemetry, store: MemoryStore
) -> None:
    app = app_on(
        store,
        failing=["charge 5"],
        observers=[telemetry.observer],
        encryption=Encryption("k", {"k": b"k" * 16}),
    )
    await buy.start(5).run(app)
    assert all("charge 5" not in str(one.status.description) for one in telemetry.ended())
    assert telemetry.one("run buy").attributes["error.type"].endswith("Broken")


def seen_in_worker(_: int) -> Effect[object, Never, tuple[int, str]]:
    return from_fn(lambda _: (get_current_span().get_span_context().span_id, run_fields()["step"]))


@dataclass(frozen=True)
class Pool:
    checkpoints: Checkpoints
    executor: ProcessExecutor


@step
async def remote() -> tuple[int, str]:
    return await (await ask(Pool)).executor.apply(seen_in_worker, 1)


@workflow
def far(_: None) -> Do[Pool, object, tuple[int, str]]:
    return (yield from remote())


async def test_an_executor_continues_the_trace_and_knows_the_step(
    telemetry: Telemetry, store: MemoryStore
) -> None:
    checkpoints = Checkpoints(store, observers=[telemetry.observer])
    async with ProcessExecutor(limit=1) as executor:
        span_id, path = await far.start(None).run_or_raise(Pool(checkpoints, executor))
    assert span_id == id_of(telemetry.one("step remote"))
    assert path == "remote"


async def test_a_killed_process_and_the_next_one_make_one_trace(
    telemetry: Telemetry, tmp_path: Path
) -> None:
    store, spans = tmp_path / "runs.db", tmp_path / "spans"
    program = Program(["-m", "tests.observe.traced", str(store), str(spans)])
    assert program.wait() == -signal.SIGKILL
    lines = [line.split("|") for line in spans.read_text().splitlines() if "save" not in line]
    (start, trace, root, _), (charged, _, _, killed_life) = lines
    assert (start, charged) == ("start checkout", "step charge")

    async with SqliteStore(store) as opened:
        checkpoints = Checkpoints(opened, observers=[telemetry.observer])
        await killed_checkout.resume("c1").run_or_raise(Shop(checkpoints, is_deadly=False))
    found = {one.name: one for one in telemetry.ended()}
    assert "step charge" not in found
    life = found["run checkout"]
    assert traces([*found.values()]) == {int(trace)}
    assert parent_of(life) == int(root)
    assert linked(life) == [int(killed_life)]
    assert found["step ship"].attributes["effectflow.attempt"] == 2
    assert telemetry.counted("effectflow.recoveries") == {"checkout": 1}


def test_without_the_extra_the_observer_names_it() -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "import effectflow.observe as observe\n"
        "observe.run_fields()\n"
        "try: observe.OpenTelemetry\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    assert "pip install 'effectflow[otel]'" in ran(["-c", program]).stdout


class Failing(OpenTelemetry):
    """An observer that raises whatever it is asked."""

    def notify(self, event: CheckpointEvent) -> None:
        raise RuntimeError("notify")

    def around(self, event: Any) -> Any:
        raise RuntimeError("around")

    def context_of(self, run_id: str, workflow: str, context: Any) -> Any:
        raise RuntimeError("context_of")


async def test_a_broken_observer_hurts_no_run(store: MemoryStore) -> None:
    app = app_on(store, observers=[Failing()])
    assert await buy.start(5, run_id="b1").run_or_raise(app) == 5
    [started] = [one for one in await read_entries(store, "b1") if isinstance(one, Started)]
    assert started.kept is None


async def test_the_observers_of_a_worker_see_its_runs_beside_those_of_the_checkpoints(
    store: MemoryStore,
) -> None:
    known, own = RecordingObserver(), RecordingObserver()
    checkpoints = Checkpoints(store, observers=[known])
    app = App([buy], environment=apps.App, checkpoints=checkpoints)
    async with Worker(app, observers=[own]) as worker:
        handle = await worker.client.submit(buy, 5, run_id="b1")
        await handle.result(timeout=10)
    assert own.events == known.events
    [began] = [one for one in own.events if isinstance(one, LifeBegan)]
    assert (began.workflow, began.after_crash) == ("buy", False)
    assert began.worker.startswith("pid ")
    assert began.waited is not None
    assert LifeEnded("b1", "buy", RunStatus.COMPLETED) in own.events


async def test_nothing_is_kept_without_tracing(store: MemoryStore) -> None:
    app = app_on(store, failing=["charge 6"])
    await buy.start(5, run_id="b1").run(app)
    await buy.resume("b1").run(app)
    opened = [one for one in await read_entries(store, "b1") if isinstance(one, Started | Resumed)]
    assert len(opened) == 2
    assert all(one.kept is None for one in opened)
