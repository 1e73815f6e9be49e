"""What was written in an older format can be read forever."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import anyio
import pytest
from returns.maybe import Nothing, Some
from returns.result import Failure, Success

from effectflow.checkpoint import (
    Checkpoint,
    HistoryItem,
    RunStatus,
    RunSummary,
    read_checkpoint,
)
from effectflow.checkpoint.values import KnownTypes, from_tree
from effectflow.stores import MemoryStore
from tests.format.conftest import STORED

SAVED = json.loads((STORED / "values.json").read_text("utf-8"))


def bodies(format: str) -> list[bytes]:
    rows: list[str] = SAVED[format]
    if format == "json":
        return [row.encode() for row in rows]
    return [base64.b64decode(row) for row in rows]


async def read(format: str) -> Checkpoint:
    async with MemoryStore() as store:
        summary = RunSummary("import", RunStatus.COMPLETED, 1.0)
        await store.create("run-1", bodies(format), summary=summary)
        return await read_checkpoint(store, "run-1")


@pytest.mark.parametrize("format", ["json", "cbor"])
def test_format_1_is_read(format: str) -> None:
    checkpoint = anyio.run(read, format)

    assert checkpoint.version == 1
    assert checkpoint.workflow == "import"
    assert (checkpoint.definition.version, checkpoint.definition.steps) == (
        "2",
        ("fetch", "parse", "undo"),
    )
    assert checkpoint.initial_state == {"url": "x"}
    assert checkpoint.context == {"tenant": "t1"}
    assert checkpoint.status is RunStatus.COMPLETED
    assert checkpoint.metadata.attempts == {"fetch": 2, "parse": 2, "notify": 1, "undo": 1}
    assert (checkpoint.metadata.resumes, checkpoint.metadata.entries) == (3, 27)
    assert checkpoint.history == (
        HistoryItem("fetch", "completed"),
        HistoryItem("parse", "completed"),
        HistoryItem("notify", "failed", "str: busy"),
        HistoryItem("undo", "completed"),
    )
    assert (checkpoint.created_at, checkpoint.updated_at) == (1.0, 14.0)


@pytest.mark.parametrize("format", ["json", "cbor"])
def test_every_kind_of_value_of_format_1_is_read(format: str) -> None:
    checkpoint = anyio.run(read, format)
    value: dict[str, Any] = from_tree(checkpoint.completed_steps[0].output, types=KnownTypes.of())

    assert math.isnan(value.pop("nan"))
    assert value.pop("zoned").isoformat() == "2026-10-25T02:30:00+01:00"
    assert value == {
        "none": None,
        "bool": True,
        "int": 7,
        "large": 2**70,
        "float": 1.5,
        "inf": -math.inf,
        "text": "ünï",
        "bytes": b"\x00\xff",
        "list": [1],
        "tuple": (1, "a"),
        "set": {1, 3},
        "frozenset": frozenset({2}),
        "keys": {1: "one", ("a",): 2},
        "$dollar": {"$x": 1},
        "datetime": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "naive": datetime(2026, 1, 2),
        "date": date(2026, 1, 2),
        "time": time(3, 4, 5),
        "timedelta": timedelta(-1, 2, 3),
        "decimal": Decimal("1.10"),
        "fraction": Fraction(1, 3),
        "uuid": UUID(int=5),
        "path": Path("a/b"),
        "posix": PurePosixPath("/x"),
        "windows": PureWindowsPath("C:/x"),
        "success": Success(1),
        "failure": Failure("no"),
        "some": Some(2),
        "nothing": Nothing,
    }
    assert str(value["decimal"]) == "1.10"
    assert ZoneInfo("Europe/Berlin").key == "Europe/Berlin"
