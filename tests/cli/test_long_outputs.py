"""JSON of runs whose outputs are too long together shows that they are left out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from effectflow import Checkpoints, Do, Effect, pure, step, workflow
from effectflow.stores import SqliteStore
from tests.cli.conftest import Command


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints


@step
def extend(text: str) -> Effect[App, str, list[str]]:
    return pure([text, "end"])


@step
def nothing() -> Effect[App, str, None]:
    return pure(None)


@workflow
def long(_: None) -> Do[App, str, None]:
    text = "text " * 4000
    yield from extend(text)
    yield from nothing()
    yield from extend(text)


def test_outputs_that_are_too_long_are_absent(
    effectflow: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(Checkpoints(SqliteStore(folder / "runs.db")))
    anyio.run(long.start(None, run_id="r").run, app)
    monkeypatch.setattr("effectflow.cli.history._MOST_OUTPUT", 10_000)
    monkeypatch.setattr("effectflow.checkpoint.checkpoint.MAX_COMPACT_BYTES", 30_000)
    entries = effectflow("history", "r", "--store", "runs.db", "--json").json
    completed = {entry["step"]: entry for entry in entries if entry["entry"] == "completed"}
    assert completed["nothing"]["output"] is None
    assert "output" in completed["extend"]
    assert "output" not in completed["extend#2"]
    shown = effectflow("show", "r", "--store", "runs.db", "--json").json
    assert ["output" in one for one in shown["completed_steps"]] == [False] * 3
