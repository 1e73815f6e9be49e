"""Where `compare.py` runs one system: a PostgreSQL server, new databases, and processes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.compared.measurements import Measurement
from benchmarks.compared.report import OURS
from benchmarks.compared.systems import GRAPH, ROOT, SYSTEMS, System, python_of

__all__ = ["Failed", "Stage", "facts", "figures_of", "measured_once"]

PROGRAMS = Path(__file__).parent
SECONDS = 300
"""How long one program may take."""


class Failed(Exception):
    """A program did not end well."""


@dataclass(frozen=True)
class Stage:
    """A PostgreSQL server, and a folder for databases of SQLite. Each program has a new database."""

    dsn: str
    folder: Path

    @property
    def server(self) -> int:
        return int((self.folder / "postgres" / "postmaster.pid").read_text().split()[0])

    def environment(self) -> dict[str, str]:
        """With this checkout, and with the programs of the server, such as psql."""
        programs = Path(f"/proc/{self.server}/exe").resolve().parent
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    @contextmanager
    def database(self, kind: str) -> Iterator[str]:
        """Make a database, and yield its URL."""
        name = f"compare_{os.urandom(4).hex()}"
        if kind == "sqlite":
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=name) as folder:
                yield f"sqlite:///{folder}/runs.db"
            return
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
            yield self.dsn.replace("/postgres?", f"/{name}?")
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
            # Nothing of one program is left to do during the next one.
            connection.execute("CHECKPOINT")

    def settings(self) -> str:
        with psycopg.connect(self.dsn) as connection:

            def value(name: str) -> str:
                return connection.execute(f"SHOW {name}".encode()).fetchall()[0][0]

            version, fsync, commit = map(value, ("server_version", "fsync", "synchronous_commit"))
        return f"PostgreSQL {version} (fsync={fsync}, synchronous_commit={commit})"


def ended(command: Sequence[str], stage: Stage) -> tuple[str, float]:
    """Run a command. Return what it printed, and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=stage.environment(),
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0:
        raise Failed(process.stderr.strip() or f"exit code {process.returncode}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return process.stdout, used


def figures_of(
    system: System, measure: str, options: dict[str, Any], url: str, stage: Stage
) -> dict[str, float]:
    """Run a program on its database."""
    python = python_of(system)
    if measure in ("throughput", "fairness", "latency", "death"):
        options = {**options, "folder": str(stage.folder)}
    if url.startswith("postgresql:"):
        options = {**options, "server": stage.server}
    options = {**options, "url": url}
    command = [python, str(PROGRAMS / system.program), measure, json.dumps(options)]
    printed, _ = ended(command, stage)
    return json.loads(printed.splitlines()[-1])


def of_import(system: System, database: str, stage: Stage) -> dict[str, float]:
    """The processor seconds of an import in a process of its own, the second one that does it."""
    statement = system.imports[database]
    program = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
    command = [python_of(system), "-c", program]
    ended(command, stage)
    printed, _ = ended(command, stage)
    return {"import.cpu": float(printed)}


def of_command(system: System, measure: str, url: str, stage: Stage) -> dict[str, float]:
    """The processor seconds of a command of its own, once it has run before."""
    first, *rest = system.command
    start = [str(Path(python_of(system)).with_name(first)), *rest]
    command = [*start, "--help"] if measure == "help" else [*start, *system.listing, url]
    if measure == "list":
        figures_of(system, "steps", {"runs": 1, "steps": 2}, url, stage)
    ended(command, stage)
    _, used = ended(command, stage)
    return {f"{measure}.cpu": used}


def measured_once(
    measurement: Measurement, name: str, options: dict[str, Any], stage: Stage
) -> dict[str, float]:
    """Measure one system, in one round."""
    system, measure = SYSTEMS[OURS if name == GRAPH else name], measurement.measure
    if measure == "import":
        return of_import(system, measurement.database, stage)
    with stage.database(measurement.database) as url:
        if measure in ("help", "list"):
            return of_command(system, measure, url, stage)
        measure = "resume_graph" if name == GRAPH else measure
        return figures_of(system, measure, options, url, stage)


def facts(stage: Stage, rounds: int, *, is_quick: bool) -> list[str]:
    """What a reader has to know: the date, versions, durability and the machine."""
    version = importlib.metadata.version("effectflow")
    peers = ", ".join(
        " ".join(each for each in system.requirements if not each.startswith("psycopg")).replace(
            "==", " "
        )
        for system in SYSTEMS.values()
        if system.requirements
    )
    machine = f"Python {platform.python_version()}; {os.cpu_count()} cores"
    work = "of a quick run" if is_quick else "of the whole work"
    how = f"medians of {rounds} rounds {work}, with the lowest and the highest"
    return [
        f"{datetime.now(UTC):%Y-%m-%d}; {machine}; {how}",
        f"effectflow {version}; {peers}",
        f"SQLite {sqlite3.sqlite_version} (WAL, synchronous=FULL); {stage.settings()}",
    ]
