"""effectflow beside its peers: the same work, in turns, at the same durability, on the same machine.

    pip install -e '.[cli,postgres]' --group dev
    python benchmarks/compare.py [--quick] [--rounds N] [--queued N] [--json FILE] [--markdown FILE]
        [MEASUREMENT ...]

The programs are in `compared/`: one for each system, as its documentation does it. Each peer has a
virtual environment of its own, made once in the user's cache directory. In each round every system runs
once, in a process of its own and on an empty database, so that all meet the same machine; the ratios are
medians over rounds. Processor time is that of all processes, also of the database server. It says more
than wall time on a machine that does other things. Needs Linux, for /proc.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

# The programs of the peers find what they share in the same way.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.compared.measurements import (
    FAIRNESS,
    MEASUREMENTS,
    NOT_DURABLE,
    Measurement,
    rows_of,
)
from benchmarks.compared.report import as_json, as_markdown, in_page
from benchmarks.compared.stage import Failed, Stage, facts, measured_once
from benchmarks.compared.systems import PYDANTIC, SYSTEMS, python_of
from benchmarks.servers import postgres_server

ROUNDS = 3
Measured: TypeAlias = dict[str, dict[str, list[dict[str, float]]]]
"""The figures of each round, by measurement and system."""


def log(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def measured_in_rounds(
    chosen: Sequence[Measurement], options: Mapping[str, dict[str, Any]], rounds: int, stage: Stage
) -> tuple[Measured, dict[str, str]]:
    """Measure every system once in each round. Return the figures, and the systems that failed."""
    measured: Measured = {each.name: {name: [] for name in each.systems} for each in chosen}
    failed: dict[str, str] = {}
    turns = [(number, each) for number in range(1, rounds + 1) for each in chosen]
    for number, each in turns:
        for name in [*measured[each.name]]:
            began = time.perf_counter()
            try:
                figures = measured_once(each, name, options[each.name], stage)
            except (Failed, subprocess.TimeoutExpired) as error:
                log(f"{each.name}, {name}: {str(error)[-800:]}")
                del measured[each.name][name]
                failed[each.name] = name
                continue
            measured[each.name][name].append(figures)
            log(f"round {number}: {each.name}, {name}, {time.perf_counter() - began:.1f} s")
    return measured, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [each.name for each in MEASUREMENTS]
    parser.add_argument("measurements", nargs="*", metavar="MEASUREMENT", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="one round of less work")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} by default")
    parser.add_argument("--queued", type=int, help="queued runs of one tenant in queue-fairness")
    parser.add_argument("--json", type=Path, help="a file for the figures of all rounds")
    parser.add_argument(
        "--markdown", type=Path, help="a file for the table, or a page with a place"
    )
    asked = parser.parse_args()
    if unknown := {*asked.measurements} - {*names}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    rounds = asked.rounds or (1 if asked.quick else ROUNDS)
    chosen = [each for each in MEASUREMENTS if each.name in (asked.measurements or names)]
    options = {
        each.name: {**each.options, **(each.quick if asked.quick else {})} for each in chosen
    }
    if asked.queued and FAIRNESS in options:
        options[FAIRNESS]["queued"] = asked.queued
    for system in SYSTEMS.values():
        python_of(system)

    with tempfile.TemporaryDirectory() as folder, postgres_server(Path(folder) / "postgres") as dsn:
        stage = Stage(dsn, Path(folder))
        measured, failed = measured_in_rounds(chosen, options, rounds, stage)
        known = facts(stage, rounds, is_quick=asked.quick)
    rows = [row for each in chosen for row in rows_of(each, options[each.name])]
    absent = {each.name: {PYDANTIC: NOT_DURABLE, **each.absent} for each in chosen}
    for measurement, name in failed.items():
        absent[measurement][name] = f"{name} failed in {measurement}."
    table = as_markdown(rows, measured, absent, known)
    print(table)
    if asked.markdown:
        page = asked.markdown.read_text(encoding="utf-8") if asked.markdown.exists() else ""
        asked.markdown.write_text(in_page(page, table), encoding="utf-8")
    if asked.json:
        data = as_json(rows, measured, absent, known)
        asked.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
