"""Traces and metrics of runs by OpenTelemetry. Needs the extra `otel`, which is only the API.

A run is one trace, over all of its lives and processes. Its parent is in the context of the run, as the
headers that a propagator writes (W3C `traceparent`). Each life is a span, with a link to the life before,
whose headers are in the first entry of that life. Attempts of steps, waits and saves of at least a
millisecond are spans within.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import Token
from typing import Any

from effectflow.checkpoint.entries import Completed, Entry, ErrorRecord, Failed, Finished
from effectflow.checkpoint.observers import (
    AttemptBegan,
    CheckpointEvent,
    CheckpointSaved,
    EntryAppended,
    Lasting,
    LifeBegan,
    LifeEnded,
    RunBlocked,
    RunWaits,
)
from effectflow.checkpoint.run_info import RunStatus
from effectflow.effects.imports import needs
from effectflow.effects.scope import Surrounding, around_calls
from effectflow.observe.carried_trace import CarriedTrace

with needs("otel"):
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import (
        Link,
        Span,
        SpanContext,
        SpanKind,
        StatusCode,
        get_current_span,
        set_span_in_context,
    )

_SHORT = 0.001
"""A save of fewer seconds has no span: making one takes a good part of that, and there is one a step."""

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""The bounds of the histograms. Those of the SDK are for milliseconds."""


class OpenTelemetry:
    """An observer that makes a trace of each run, and metrics of all: `Checkpoints(observers=[...])`.

    The span of an attempt is the current one while the code of the step runs, also in threads and
    executors, so what it calls makes spans within. `spawn`, `submit` and `start` continue the current
    trace; without one, the new run begins a trace. A replay makes no spans of what it skips.

    Metrics, by `effectflow.workflow`:

    - `effectflow.runs`: lives that have ended, by the `effectflow.status` they left the run in
    - `effectflow.runs.driven`: the runs that this process drives now
    - `effectflow.recoveries`: lives after the death of a process
    - `effectflow.queue.delay`: the seconds from when a run was due until a worker has taken it
    - `effectflow.step.duration`: the seconds of attempts, by `effectflow.step` (the name of the step) and
      `effectflow.outcome`
    - `effectflow.save.duration`: the seconds of appends to the store

    The errors of runs with encrypted entries are shown by their class only. Events name runs by their id,
    so give each store an `OpenTelemetry` of its own; they may share providers.

    Parameters:
        tracer_provider, meter_provider: by default the global ones, which your program sets.

    Example:
        >>> from effectflow import Checkpoints
        >>> from effectflow.observe import OpenTelemetry
        >>> from effectflow.stores import MemoryStore
        >>> checkpoints = Checkpoints(MemoryStore(), observers=[OpenTelemetry()])
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self.tracer = trace.get_tracer("effectflow", tracer_provider=tracer_provider)
        meter = metrics.get_meter("effectflow", meter_provider=meter_provider)
        self.runs = meter.create_counter("effectflow.runs", "{run}")
        self.driven = meter.create_up_down_counter("effectflow.runs.driven", "{run}")
        self.recoveries = meter.create_counter("effectflow.recoveries", "{run}")
        self.queue_delay, self.step_duration, self.save_duration = (
            meter.create_histogram(name, "s", explicit_bucket_boundaries_advisory=_SECONDS)
            for name in (
                "effectflow.queue.delay",
                "effectflow.step.duration",
                "effectflow.save.duration",
            )
        )
        self.lives: dict[str, _Life] = {}

    def context_of(
        self, run_id: str, workflow: str, context: Mapping[str, object]
    ) -> Mapping[str, str]:
        """Return the headers of the current span; of a new one if neither it nor the context has any."""
        position = get_current()
        if not get_current_span().get_span_context().is_valid:
            if _span_in(context).is_valid:
                return {}
            attributes = {"effectflow.run.id": run_id, "effectflow.workflow": workflow}
            span = self.tracer.start_span(
                f"start {workflow}", kind=SpanKind.PRODUCER, attributes=attributes
            )
            span.end()
            position = set_span_in_context(span)
        carrier: dict[str, str] = {}
        inject(carrier, position)
        return carrier

    def around(self, event: Lasting) -> AbstractContextManager[Mapping[str, str] | None]:
        """Return the span of a life, an attempt or a wait."""
        match event:
            case LifeBegan():
                return _Life(self, event)
            case AttemptBegan():
                return _Attempt(self, event)
            case RunWaits():
                return _Wait(self, event)

    def notify(self, event: CheckpointEvent) -> None:
        """Note how attempts and lives end, and count."""
        # The most frequent ones first.
        if isinstance(event, EntryAppended):
            life = self.lives.get(event.run_id)
            if life is not None:
                life.note(event.entry)
        elif isinstance(event, CheckpointSaved):
            self._saved(event)
        elif isinstance(event, LifeEnded):
            life = self.lives.get(event.run_id)
            if life is not None:
                life.span.set_attribute("effectflow.status", event.status)
            if event.status is not RunStatus.RUNNING:
                self._count(event.workflow, event.status)
        elif isinstance(event, RunBlocked):
            self._count(event.workflow, RunStatus.BLOCKED)

    def _count(self, workflow: str, status: RunStatus) -> None:
        self.runs.add(1, {"effectflow.workflow": workflow, "effectflow.status": str(status)})

    def _saved(self, saved: CheckpointSaved) -> None:
        life = self.lives.get(saved.run_id)
        # The creation of a run is not measured.
        if life is None or not saved.seconds:
            return
        self.save_duration.record(saved.seconds, life.labels)
        if saved.seconds < _SHORT:
            return
        # A save that no step waits for is made by a task without a current span.
        is_within = get_current_span().get_span_context().trace_id == life.trace_id
        end = time.time_ns()
        self.tracer.start_span(
            "save",
            None if is_within else life.position,
            attributes={"effectflow.entries": saved.entries},
            start_time=end - int(saved.seconds * 1e9),
        ).end(end)


def fail(span: Span, error: ErrorRecord, *, is_secret: bool) -> None:
    """Mark a span as failed."""
    span.set_attribute("error.type", error.type)
    span.set_status(StatusCode.ERROR, error.type if is_secret else f"{error.type}: {error.message}")


def _span_in(carrier: Mapping[str, object]) -> SpanContext:
    """Return the position of a span that a propagator has written; an invalid one if there is none."""
    return get_current_span(extract(_texts(carrier))).get_span_context()


def _texts(carrier: Mapping[str, object]) -> dict[str, str]:
    return {name: value for name, value in carrier.items() if isinstance(value, str)}


class _Life:
    """The span of a life, which is current while the body of the run runs.

    Attributes:
        span, trace_id, position: the span, its trace, and the context with it.
        labels: the attributes of metrics.
        attempts: the attempts of steps in progress, by the path of the step.
    """

    def __init__(self, telemetry: OpenTelemetry, began: LifeBegan) -> None:
        self._telemetry = telemetry
        self._began = began
        self.is_secret = began.is_secret
        self.labels = {"effectflow.workflow": began.workflow}
        self.attempts: dict[str, _Attempt] = {}
        self._token: Token[Context] | None = None
        self._calls: Token[tuple[Surrounding, ...]] | None = None

    def __enter__(self) -> Mapping[str, str]:
        began, telemetry = self._began, self._telemetry
        before = _span_in(began.before)
        attributes: dict[str, Any] = {**self.labels, "effectflow.run.id": began.run_id}
        if began.worker:
            attributes["effectflow.worker"] = began.worker
        parent = self._parent()
        self.span = telemetry.tracer.start_span(
            f"run {began.workflow}",
            parent,
            SpanKind.INTERNAL if began.waited is None else SpanKind.CONSUMER,
            attributes,
            [Link(before)] if before.is_valid else None,
        )
        self.trace_id = self.span.get_span_context().trace_id
        self.position = set_span_in_context(self.span, parent)
        self._token = attach(self.position)
        self._calls = around_calls.set((*around_calls.get(), _carried))
        telemetry.lives[began.run_id] = self
        telemetry.driven.add(1, self.labels)
        if began.after_crash:
            telemetry.recoveries.add(1, self.labels)
        if began.waited is not None:
            telemetry.queue_delay.record(began.waited, self.labels)
        kept: dict[str, str] = {}
        inject(kept, set_span_in_context(self.span, Context()))
        return kept

    def note(self, entry: Entry) -> None:
        """Note how an attempt or the run has ended, if this entry says so."""
        if isinstance(entry, (Completed, Failed)):
            attempt = self.attempts.get(entry.step)
            if attempt is not None:
                attempt.note(entry)
        elif isinstance(entry, Finished) and entry.error is not None:
            fail(self.span, entry.error, is_secret=self.is_secret)

    def _parent(self) -> Context:
        """Return the position that the run was created at; that of the life before if there is none."""
        for carrier in (self._began.context, self._began.before):
            if _span_in(carrier).is_valid:
                return extract(_texts(carrier))
        return get_current()

    def __exit__(self, *raised: object) -> None:
        telemetry, run_id = self._telemetry, self._began.run_id
        self.span.end()
        if telemetry.lives.get(run_id) is self:
            del telemetry.lives[run_id]
        telemetry.driven.add(-1, self.labels)
        if self._calls is not None:
            around_calls.reset(self._calls)
        if self._token is not None:
            detach(self._token)


def _carried() -> CarriedTrace:
    """Return the current position, for a call that is sent to another process."""
    carrier: dict[str, str] = {}
    inject(carrier)
    return CarriedTrace(carrier)


class _Attempt:
    """The span of an attempt, which is current while the code of the step runs."""

    __slots__ = (
        "_began",
        "_began_at",
        "_life",
        "_outcome",
        "_span",
        "_telemetry",
        "_token",
    )

    def __init__(self, telemetry: OpenTelemetry, began: AttemptBegan) -> None:
        self._telemetry = telemetry
        self._began = began
        self._outcome = "interrupted"

    def __enter__(self) -> None:
        began = self._began
        self._life = life = self._telemetry.lives[began.run_id]
        life.attempts[began.step] = self
        self._span = self._telemetry.tracer.start_span(
            f"step {self._began.name}",
            attributes={"effectflow.step": began.step, "effectflow.attempt": began.attempt},
        )
        self._token = attach(set_span_in_context(self._span))
        self._began_at = time.perf_counter()

    def note(self, ended: Completed | Failed) -> None:
        """Note the entry with which the attempt has ended. Without one, it was interrupted."""
        if isinstance(ended, Failed):
            self._outcome = "failed"
            fail(self._span, ended.error, is_secret=self._life.is_secret)
        else:
            self._outcome = "completed"

    def __exit__(self, *raised: object) -> None:
        seconds = time.perf_counter() - self._began_at
        del self._life.attempts[self._began.step]
        detach(self._token)
        if self._outcome == "interrupted":
            self._span.set_attribute("effectflow.outcome", self._outcome)
        self._span.end()
        labels = {
            **self._life.labels,
            "effectflow.step": self._began.name,
            "effectflow.outcome": self._outcome,
        }
        self._telemetry.step_duration.record(seconds, labels)


class _Wait:
    """The span of a wait."""

    __slots__ = ("_span",)

    def __init__(self, telemetry: OpenTelemetry, wait: RunWaits) -> None:
        self._span = telemetry.tracer.start_span(
            "wait", attributes={"effectflow.waits_for": wait.what}
        )

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        self._span.end()
