"""What `compare.py` measures: on which systems, how much, and the rows of the table that it gives."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.compared.measuring import LIMITED_WORKERS
from benchmarks.compared.report import FLOOR, OURS, Row
from benchmarks.compared.systems import (
    ABSURD,
    BURR,
    DBOS,
    GRAPH,
    LANGGRAPH,
    PROCRASTINATE,
    PYDANTIC,
)

__all__ = ["FAIRNESS", "MEASUREMENTS", "NOT_DURABLE", "Measurement", "rows_of"]

FAIRNESS = "queue-fairness"

ON_POSTGRES_ONLY = "Absurd and procrastinate keep runs in PostgreSQL only."
NO_STEPS = "A job of procrastinate has no steps: it is begun again from its beginning."
NOT_DURABLE = "pydantic-graph keeps no state on disk in this version. It counts only as an import."
NO_WORKER = (
    "LangGraph and Burr have no workers: the caller runs each graph, and knows which to resume."
)
NO_LIMITS = "Queues of Absurd have neither limits nor keys."
NO_COMMANDS = "LangGraph and Burr bring no command for runs with these packages."
NO_LIST = "procrastinate lists jobs in an interactive shell only."
IN_JSON = "Burr keeps values as JSON, and of bytes, or data classes in a list, only their `str()`."
NOT_ALONE = (
    "After a kill, Absurd waits until the claim expires (120 s by default), and a job of procrastinate"
    " waits for a task that your code schedules (`get_stalled_jobs`)."
)


@dataclass(frozen=True)
class Measurement:
    """What the programs measure: a name, the systems, and the options, also those of a quick run."""

    name: str
    measure: str
    database: str
    systems: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    quick: dict[str, Any] = field(default_factory=dict[str, Any])
    absent: Mapping[str, str] = field(default_factory=dict[str, str])


QUEUES = (OURS, DBOS, ABSURD, PROCRASTINATE)
BEYOND_QUEUES = {LANGGRAPH: NO_WORKER, BURR: NO_WORKER}
LIMITED = (OURS, DBOS, PROCRASTINATE)
BEYOND_LIMITED = {**BEYOND_QUEUES, ABSURD: NO_LIMITS}
BEYOND_SQLITE = {ABSURD: ON_POSTGRES_ONLY, PROCRASTINATE: ON_POSTGRES_ONLY}
STEPS, FEW_STEPS = {"runs": 200, "steps": 20}, {"runs": 40, "steps": 20}
MB, ITEMS, INTS = 1_000_000, 10_000, 100_000


def of_values(kind: str, sizes: Sequence[int], systems: tuple[str, ...]) -> Measurement:
    """A measurement of values of one kind, on SQLite."""
    left_out = {name: IN_JSON for name in (BURR,) if name not in systems}
    options = {"values": [(kind, size) for size in sizes]}
    return Measurement(
        kind, "values", "sqlite", systems, options, absent={**BEYOND_SQLITE, **left_out}
    )


MEASUREMENTS = [
    Measurement(
        "steps-sqlite",
        "steps",
        "sqlite",
        (OURS, FLOOR, DBOS, LANGGRAPH, BURR),
        STEPS,
        FEW_STEPS,
        BEYOND_SQLITE,
    ),
    Measurement(
        "steps-postgres",
        "steps",
        "postgres",
        (OURS, DBOS, ABSURD, LANGGRAPH, BURR),
        STEPS,
        FEW_STEPS,
        {PROCRASTINATE: NO_STEPS},
    ),
    *(
        Measurement(
            f"submit-{number}",
            "throughput",
            "postgres",
            QUEUES,
            {"runs": 300, "number": number},
            {"runs": 150},
            BEYOND_QUEUES,
        )
        for number in (1, 4)
    ),
    Measurement(
        "latency", "latency", "postgres", QUEUES, {"submits": 30}, {"submits": 12}, BEYOND_QUEUES
    ),
    Measurement(
        "queue-throughput",
        "throughput",
        "postgres",
        LIMITED,
        {"runs": 300, "number": LIMITED_WORKERS, "keys": 100},
        {"runs": 150},
        BEYOND_LIMITED,
    ),
    Measurement(
        FAIRNESS,
        "fairness",
        "postgres",
        LIMITED,
        {"queued": 2000, "others": 20},
        {"queued": 1000, "others": 10},
        BEYOND_LIMITED,
    ),
    of_values("bytes", (MB, 20 * MB), (OURS, DBOS, LANGGRAPH)),
    of_values("items", (ITEMS,), (OURS, DBOS, LANGGRAPH)),
    of_values("ints", (INTS,), (OURS, DBOS, LANGGRAPH, BURR)),
    Measurement(
        "resume-sqlite",
        "resume",
        "sqlite",
        (OURS, GRAPH, DBOS, LANGGRAPH, BURR),
        {"steps": 1000},
        {"steps": 200},
        BEYOND_SQLITE,
    ),
    Measurement(
        "resume-postgres",
        "resume",
        "postgres",
        (OURS, GRAPH, DBOS, ABSURD, LANGGRAPH, BURR),
        {"steps": 1000},
        {"steps": 200},
        {PROCRASTINATE: NO_STEPS},
    ),
    Measurement(
        "death",
        "death",
        "postgres",
        (OURS, DBOS),
        absent={**BEYOND_QUEUES, **dict.fromkeys((ABSURD, PROCRASTINATE), NOT_ALONE)},
    ),
    Measurement(
        "import-sqlite",
        "import",
        "sqlite",
        (OURS, DBOS, LANGGRAPH, BURR, PYDANTIC),
        absent=BEYOND_SQLITE,
    ),
    Measurement(
        "import-postgres",
        "import",
        "postgres",
        (OURS, DBOS, ABSURD, PROCRASTINATE, LANGGRAPH, BURR),
        absent={PYDANTIC: NOT_DURABLE},
    ),
    Measurement(
        "help",
        "help",
        "postgres",
        QUEUES,
        absent=dict.fromkeys(BEYOND_QUEUES, NO_COMMANDS),
    ),
    Measurement(
        "list",
        "list",
        "postgres",
        (OURS, DBOS, ABSURD),
        absent={PROCRASTINATE: NO_LIST, **dict.fromkeys(BEYOND_QUEUES, NO_COMMANDS)},
    ),
]


def rows_of(measurement: Measurement, options: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows that a measurement gives."""
    name, place = (
        measurement.name,
        {"sqlite": "SQLite", "postgres": "PostgreSQL"}[measurement.database],
    )

    def row(title: str, unit: str, figure: str, scale: float, **kind: bool) -> Row:
        return Row(name, title, unit, lambda figures: figures[figure] * scale, **kind)

    match measurement.measure:
        case "steps":
            each = 1 / (options["runs"] * options["steps"])
            yield row(f"a step on {place}", "µs CPU", "steps.cpu", 1e6 * each)
            if FLOOR in measurement.systems:
                yield row("the same", "times the bare floor", "steps.cpu", 1, over_floor=True)
            yield row(f"a step on {place}", "µs", "steps.wall", 1e6 * each)
            yield row(f"a step with 200 B of state on {place}", "bytes stored", "bytes", each)
        case "throughput":
            runs, number = options["runs"], options["number"]
            limits = "of a queue with limits, " if "keys" in options else ""
            workers = f"{limits}{number} worker{'s' * (number > 1)}"
            yield row(f"a submitted run of one step, {workers}", "ms CPU", "runs.cpu", 1e3 / runs)
            yield Row(
                name,
                f"submitted runs, {workers}",
                "runs a second",
                lambda figures: runs / figures["runs.wall"],
                more_is_better=True,
            )
        case "latency" | "fairness":
            beside = ""
            if "queued" in options:
                beside = f"beside {options['queued']:,} queued runs of another key, "
            yield Row(
                name,
                f"from submit to the first step, {beside}median",
                "ms",
                lambda figures: statistics.median(figures.values()) * 1e3,
            )
        case "values":
            words = {"bytes": "{:g} MB of bytes", "items": "{:,} data classes", "ints": "{:,} ints"}
            for kind, size in options["values"]:
                what = words[kind].format(size / MB if kind == "bytes" else size)
                yield row(f"{what}: record", "ms CPU", f"record-{kind}-{size}.cpu", 1e3)
                yield row(f"{what}: resume", "ms CPU", f"resume-{kind}-{size}.cpu", 1e3)
        case "resume":
            yield row(
                f"resume after {options['steps']:,} steps, {place}", "ms CPU", "resume.cpu", 1e3
            )
        case "death":
            yield row("kill and restart, until 10 runs go on", "s", "death.wall", 1)
        case "import":
            yield row(f"import, for {place}", "ms CPU", "import.cpu", 1e3)
        case "help":
            yield row("the command with `--help`", "ms CPU", "help.cpu", 1e3)
        case _:
            yield row("the command that lists runs", "ms CPU", "list.cpu", 1e3)
