"""The systems that `compare.py` compares, and their environments."""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from benchmarks.compared.report import FLOOR, OURS

__all__ = [
    "ABSURD",
    "BURR",
    "DBOS",
    "GRAPH",
    "LANGGRAPH",
    "PROCRASTINATE",
    "PYDANTIC",
    "ROOT",
    "SYSTEMS",
    "System",
    "python_of",
]


ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, eq=False)
class System:
    """One that is compared: its program, and what is installed in its environment. Ours has none."""

    program: str
    requirements: tuple[str, ...] = ()
    imports: dict[str, str] = field(default_factory=dict[str, str])
    """What a program imports in order to use it, by the database."""
    command: tuple[str, ...] = ()
    """How its command line starts."""
    listing: tuple[str, ...] = ()
    """The arguments that list its runs in the database whose URL follows."""


PSYCOPG = "psycopg[binary]==3.3.9"
DBOS, ABSURD, PROCRASTINATE = "DBOS", "Absurd", "procrastinate"
LANGGRAPH, BURR, PYDANTIC = "LangGraph", "Burr", "pydantic-graph"
GRAPH = f"{OURS}, as a graph"

SYSTEMS = {
    OURS: System(
        "ours.py",
        imports={
            "sqlite": "from effectflow import Checkpoints, SqliteStore, step, workflow",
            "postgres": "from effectflow import App, Checkpoints, Worker, step, workflow;"
            " from effectflow.stores import PostgresStore",
        },
        command=("python", "-m", "effectflow"),
        listing=("list", "--store"),
    ),
    FLOOR: System("bare_floor.py"),
    DBOS: System(
        "peer_dbos.py",
        ("dbos==3.4.0", PSYCOPG),
        {"sqlite": "from dbos import DBOS", "postgres": "from dbos import DBOS, DBOSClient"},
        ("dbos",),
        ("workflow", "list", "--sys-db-url"),
    ),
    ABSURD: System(
        "peer_absurd.py",
        ("absurd-sdk==0.5.1", "absurdctl==0.5.1", PSYCOPG),
        {"postgres": "from absurd_sdk import Absurd"},
        ("absurdctl",),
        ("list-tasks", "-d"),
    ),
    PROCRASTINATE: System(
        "peer_procrastinate.py",
        ("procrastinate==3.10.0", PSYCOPG),
        {"postgres": "from procrastinate import App, PsycopgConnector"},
        ("procrastinate",),
    ),
    LANGGRAPH: System(
        "peer_langgraph.py",
        (
            "langgraph==1.2.24",
            "langgraph-checkpoint-sqlite==3.1.2",
            "langgraph-checkpoint-postgres==3.2.0",
            PSYCOPG,
        ),
        {
            "sqlite": "from langgraph.graph import StateGraph;"
            " from langgraph.checkpoint.sqlite import SqliteSaver",
            "postgres": "from langgraph.graph import StateGraph;"
            " from langgraph.checkpoint.postgres import PostgresSaver",
        },
    ),
    BURR: System(
        "peer_burr.py",
        ("apache-burr==0.43.0", "aiosqlite==0.22.1", "asyncpg==0.32.0", PSYCOPG),
        {
            "sqlite": "from burr.core import ApplicationBuilder, action;"
            " from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister",
            "postgres": "from burr.core import ApplicationBuilder, action;"
            " from burr.integrations.persisters.b_asyncpg import AsyncPostgreSQLPersister",
        },
    ),
    PYDANTIC: System("", ("pydantic-graph==2.68.0",), {"sqlite": "import pydantic_graph"}),
}


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "effectflow-compare"


@cache
def python_of(system: System) -> str:
    """Return the interpreter of a system, whose environment is made if it is not there.

    Everything that it imports is compiled to byte code.
    """
    if not system.requirements:
        # What pip does when it installs; a checkout may have none.
        compileall.compile_dir(ROOT / "effectflow", quiet=1)
        return sys.executable
    key = json.dumps([platform.python_version(), sys.executable, *system.requirements])
    name = f"{system.requirements[0]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    folder = cache_folder() / name
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        print(f"installing {', '.join(system.requirements)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*install, *system.requirements], check=True)
        complete.touch()
    return str(python)
