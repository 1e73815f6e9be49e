"""What observers and logging cost a durable step, in processor time.

    python benchmarks/observing.py

One run of many steps, each saved on its own on SQLite without fsync, with empty bodies, so that nothing
hides the costs. All variants take turns in one process, and the median of the ratios of each round
counts. Log lines are written to memory. Traces and metrics go to the SDK of OpenTelemetry, and spans are
dropped when they end: two thirds of what they cost is the SDK's.
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

import anyio
from counting import App
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider

from effectflow import Checkpoints, Do, SqliteStore, Workflow, step, workflow
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

logger = logging.getLogger("shop")


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


@workflow
def quietly(steps: int) -> Do[App, object, int]:
    number = 0
    while number < steps:
        number = yield from quiet(number)
    return number


@workflow
def loudly(steps: int) -> Do[App, object, int]:
    number = 0
    while number < steps:
        number = yield from loud(number)
    return number


def seconds(
    path: Path,
    observers: Sequence[Observer] = (),
    counting: Workflow[App, object, int, int] = quietly,
) -> float:
    """Seconds of processor time for each step of one run."""

    async def run() -> float:
        async with SqliteStore(path, durability="process") as store:
            app = App(Checkpoints(store, observers=observers))
            began = time.process_time()
            await counting.start(STEPS).run_or_raise(app)
            return (time.process_time() - began) / STEPS

    return anyio.run(run)


def main() -> None:
    logger.propagate = False
    library = logging.getLogger("effectflow")
    plain_line, with_fields = handler(), handler(RunFields(), ReplayFilter())
    traces = OpenTelemetry(TracerProvider(), NoOpMeterProvider())
    metrics = OpenTelemetry(NoOpTracerProvider(), MeterProvider([InMemoryMetricReader()]))

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
        return seconds(path, counting=loudly)

    off, line = "observers and logging off", "a log line in each step, without fields"
    variants: dict[str, Callable[[Path], float]] = {
        off: seconds,
        "off, again": seconds,
        "a line of a level that is off": lines,
        "the loggers of effectflow on": logging_on,
        line: lambda path: lines(path, plain_line),
        "the same line, with fields": lambda path: lines(path, with_fields),
        "an observer that does nothing": lambda path: seconds(path, [Deaf()]),
        "traces": lambda path: seconds(path, [traces]),
        "metrics": lambda path: seconds(path, [metrics]),
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
    print(f"{line}: {ratio(line):+.0%}, by the standard library")
    fields = "the same line, with fields"
    print(f"{fields}: {ratio(fields, to=line):+.0%} of that (to reach: at most 15%)")
    print(f"metrics: {ratio('metrics'):+.0%}")


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
