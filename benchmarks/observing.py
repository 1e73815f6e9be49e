"""What observers and logging cost a durable step, in processor time.

    python benchmarks/observing.py

One run of many steps, each saved on its own, on SQLite in a folder, with the body of each step empty, so
that nothing hides the costs. All variants take turns in one process, and the median of the ratios to a
run without observers counts. "Off" is measured twice: the difference is what the machine alone makes.
The log line of each step is formatted and written to memory, with the fields of its run. Traces and
metrics go to the SDK of OpenTelemetry, whose spans are dropped when they end.
"""

from __future__ import annotations

import io
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
from counting import App
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from effectflow import Checkpoints, Do, SqliteStore, step, workflow
from effectflow.checkpoint import CheckpointEvent, Observer
from effectflow.observe import OpenTelemetry, ReplayFilter, RunFields

STEPS = 1000
ROUNDS = 11

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


def traced() -> OpenTelemetry:
    return OpenTelemetry(TracerProvider(), MeterProvider([InMemoryMetricReader()]))


def seconds(path: Path, observers: Sequence[Observer] = (), counting=quietly) -> float:
    """Seconds of processor time for each step of one run."""

    async def run() -> float:
        async with SqliteStore(path, durability="process") as store:
            app = App(Checkpoints(store, observers=observers))
            began = time.process_time()
            await counting.start(STEPS).run_or_raise(app)
            return (time.process_time() - began) / STEPS

    return anyio.run(run)


def main() -> None:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(asctime)s %(run_id)s %(step)s: %(message)s"))
    handler.addFilter(RunFields())
    handler.addFilter(ReplayFilter())
    logger.addHandler(handler)
    logger.propagate = False

    def logging_on(path: Path) -> float:
        logger.setLevel(logging.INFO)
        return seconds(path, counting=loudly)

    def logging_off(path: Path) -> float:
        logger.setLevel(logging.WARNING)
        return seconds(path, counting=loudly)

    variants: dict[str, tuple[Callable[[Path], float], float]] = {
        "observers off, again": (seconds, 1.03),
        "logging off": (logging_off, 1.03),
        "an observer that does nothing": (lambda path: seconds(path, [Deaf()]), 1.1),
        "a log line in each step": (logging_on, 1.15),
        "traces and metrics": (lambda path: seconds(path, [traced()]), 1.4),
    }
    ratios: dict[str, list[float]] = {name: [] for name in variants}
    plain: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(ROUNDS):
            plain.append(seconds(folder / f"plain{number}.db"))
            for place, (variant, (measure, _)) in enumerate(variants.items()):
                ratios[variant].append(measure(folder / f"{place}-{number}.db") / plain[-1])
    print(f"observers off: {statistics.median(plain) * 1e6:.1f} us of processor time a step")
    for variant, (_, goal) in variants.items():
        ratio = statistics.median(ratios[variant])
        print(f"{variant}: {ratio - 1:+.0%} (at most {goal - 1:.0%})")


if __name__ == "__main__":
    main()
