"""What observers and logging cost a durable step, in processor time.

    python benchmarks/observing.py

One run of many steps, each saved on its own on SQLite without fsync, with empty bodies, so that nothing
hides the costs. All variants take turns in one process, and the median of the ratios of each round
counts. Log lines are written to memory, spans are dropped when they end.

A line, a span or a measurement has a price without effectflow, too. So what effectflow makes is compared
with the same program that makes as much by hand: a line without fields in each step; a span with two
attributes around its code; two measurements with the same attributes.
"""

from __future__ import annotations

import io
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from operator import truediv
from pathlib import Path
from typing import Never, TypeAlias

import anyio
from counting import App
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider

from effectflow import Checkpoints, Do, Effect, SqliteStore, Workflow, step, workflow
from effectflow.checkpoint import CheckpointEvent, Observer
from effectflow.observe import OpenTelemetry, ReplayFilter, RunFields

STEPS = 1000
ROUNDS = 11

GOALS = {
    "a line of a level that is off": 0.03,
    "the loggers of effectflow on": 0.15,
    "an observer that does nothing": 0.10,
    "traces": 0.40,
}
"""The most that each may add to the processor time of a step."""

BY_HAND = {
    "a line in each step, with fields": "a line in each step",
    "traces": "a span in each step",
    "metrics": "two measurements in each step",
}
"""What effectflow adds, and what a program would do by hand."""

spans, provider = TracerProvider(), MeterProvider([InMemoryMetricReader()])
tracer = spans.get_tracer("shop")
duration = provider.get_meter("shop").create_histogram("duration", "s")
logger = logging.getLogger("shop")

Counting: TypeAlias = Workflow[App, Never, int, int]


class Deaf:
    """An observer that does nothing."""

    def notify(self, event: CheckpointEvent) -> None:
        pass


@step
async def quiet(number: int) -> int:
    return number + 1


@step
async def loud(number: int) -> int:
    logger.info("counting %d", number)
    return number + 1


@step
async def spanned(number: int) -> int:
    with tracer.start_as_current_span("step", attributes={"step": "spanned", "attempt": 1}):
        return number + 1


@step
async def measured(number: int) -> int:
    duration.record(0.001, {"workflow": "shop", "step": "measured", "outcome": "completed"})
    duration.record(0.001, {"workflow": "shop"})
    return number + 1


def counting(number_after: Callable[[int], Effect[object, Never, int]]) -> Counting:
    """Return a workflow that counts with a step."""

    @workflow
    def count(steps: int) -> Do[App, Never, int]:
        number = 0
        while number < steps:
            number = yield from number_after(number)
        return number

    return count


quietly, loudly = counting(quiet), counting(loud)


def seconds(
    path: Path,
    observers: Sequence[Observer] = (),
    workflow: Counting = quietly,
) -> float:
    """Seconds of processor time for each step of one run."""

    async def run() -> float:
        async with SqliteStore(path, durability="process") as store:
            app = App(Checkpoints(store, observers=observers))
            began = time.process_time()
            await workflow.start(STEPS).run_or_raise(app)
            return (time.process_time() - began) / STEPS

    return anyio.run(run)


def main() -> None:
    logger.propagate = False
    library = logging.getLogger("effectflow")
    plain_line, with_fields = handler(), handler(RunFields(), ReplayFilter())
    traces = OpenTelemetry(spans, NoOpMeterProvider())
    both = OpenTelemetry(spans, provider)
    metrics = OpenTelemetry(NoOpTracerProvider(), provider)
    spans_by_hand, measurements_by_hand = counting(spanned), counting(measured)

    def logging_on(path: Path) -> float:
        library.addHandler(plain_line)
        library.setLevel(logging.DEBUG)
        try:
            return seconds(path)
        finally:
            library.removeHandler(plain_line)
            library.setLevel(logging.NOTSET)

    def lines(path: Path, *handlers: logging.Handler) -> float:
        logger.handlers[:] = handlers
        logger.setLevel(logging.INFO if handlers else logging.WARNING)
        return seconds(path, workflow=loudly)

    off = "observers and logging off"
    variants: dict[str, Callable[[Path], float]] = {
        off: seconds,
        "off, again": seconds,
        "a line of a level that is off": lines,
        "the loggers of effectflow on": logging_on,
        "a line in each step": lambda path: lines(path, plain_line),
        "a line in each step, with fields": lambda path: lines(path, with_fields),
        "an observer that does nothing": lambda path: seconds(path, [Deaf()]),
        "a span in each step": lambda path: seconds(path, workflow=spans_by_hand),
        "traces": lambda path: seconds(path, [traces]),
        "two measurements in each step": lambda path: seconds(path, workflow=measurements_by_hand),
        "metrics": lambda path: seconds(path, [metrics]),
        "traces and metrics": lambda path: seconds(path, [both]),
    }
    taken: dict[str, list[float]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as name:
        for number in range(ROUNDS):
            for place, (variant, measure) in enumerate(variants.items()):
                taken[variant].append(measure(Path(name) / f"{place}-{number}.db"))

    def ratio(variant: str, to: str = off) -> float:
        return statistics.median(map(truediv, taken[variant], taken[to])) - 1

    print(f"{off}: {statistics.median(taken[off]) * 1e6:.0f} us of processor time a step")
    print(f"off, again: {ratio('off, again'):+.0%}, what the machine alone makes")
    for variant, goal in GOALS.items():
        print(f"{variant}: {ratio(variant):+.0%} (to reach: at most {goal:.0%})")
    for ours, by_hand in BY_HAND.items():
        print(f"{by_hand}: {ratio(by_hand):+.0%}, by hand")
        print(f"{ours}: {ratio(ours):+.0%}, which is {ratio(ours, to=by_hand):+.0%} to that")
    print(f"traces and metrics: {ratio('traces and metrics'):+.0%}")


def handler(*filters: logging.Filter) -> logging.Handler:
    """Return a handler that writes a line with time, fields and message to memory."""
    made = logging.StreamHandler(io.StringIO())
    text = "%(asctime)s %(run_id)s %(step)s: %(message)s"
    made.setFormatter(logging.Formatter(text, defaults={"run_id": "", "step": ""}))
    for one in filters:
        made.addFilter(one)
    return made


if __name__ == "__main__":
    main()
