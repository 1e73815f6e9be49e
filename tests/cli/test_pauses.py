"""The command that shows, adds and removes pauses."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SHOP = """
from dataclasses import dataclass

from effectflow import App, Checkpoints, Do, workflow
from effectflow.stores import SqliteStore


@dataclass(frozen=True)
class Shop:
    checkpoints: Checkpoints


@workflow
def order(amount: int) -> Do[Shop, str, int]:
    yield from ()
    return amount


app = App([order], environment=Shop, checkpoints=Checkpoints(SqliteStore("shop.db")))
"""
APP = ("--app", "shop:app")


@pytest.fixture(autouse=True)
def store(folder: Path, effectflow: Command) -> None:
    (folder / "shop.py").write_text(SHOP)
    assert effectflow("run", "order", *APP, "--input", "5", "--run-id", "o1").code == 0


def test_pauses_are_added_shown_and_removed(effectflow: Command) -> None:
    assert effectflow("pauses", *APP).out == "Nothing is paused.\n"
    named = ("--pause", "queue:a:b", "--pause", "workflow:order", "--by", "ann")
    said = effectflow("pauses", *named, *APP).out
    assert "queue a:b is paused by ann since " in said
    assert "workflow order is paused by ann since " in said
    left = effectflow("pauses", "--unpause", "workflow:order", *APP, "--json").json
    assert [(one["kind"], one["name"], one["by"]) for one in left] == [("queue", "a:b", "ann")]
    assert datetime.fromisoformat(left[0]["at"]).tzinfo == UTC


def test_a_pause_of_what_the_app_does_not_have_is_noted_with_a_warning(
    effectflow: Command,
) -> None:
    ran = effectflow("pauses", "--pause", "workflow:ordr", "--pause", "queue:order", *APP)
    assert (ran.code, ran.err) == (
        0,
        "The App 'shop:app' has no workflow 'ordr'; it has: order\n",
    )


@pytest.mark.parametrize("wrong", ["reports", "queue:", "run:o1"])
def test_what_cannot_be_paused_is_named(effectflow: Command, wrong: str) -> None:
    ran = effectflow("pauses", "--pause", "queue:a", "--pause", wrong, *APP)
    assert ran.code == 2
    assert "is none of queue:NAME, workflow:NAME, schedule:NAME" in ran.err
    assert effectflow("pauses", *APP, "--json").json == []


def test_show_and_list_have_the_queue_of_a_run(folder: Path, effectflow: Command) -> None:
    submit = "import anyio, shop; from effectflow import Client;"
    submit += "anyio.run(lambda: Client(shop.app).submit("
    submit += "shop.order, 1, run_id='o2', queue='a', key='k'))"
    subprocess.run([sys.executable, "-c", submit], cwd=folder, check=True)
    assert "queue a, key k" in " ".join(effectflow("show", "o2", *APP).out.split())
    newest = effectflow("list", *APP, "--json").json[0]
    assert (newest["run_id"], newest["queue"], newest["key"]) == ("o2", "a", "k")
