"""`effectflow explain`: why a run is where it is, in 80 columns, and the commands that would move it."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from effectflow.cli.commands import COMMANDS
from tests.cli.conftest import Command
from tests.cli.services import driven, submitted, write_mall

APP = ("--app", "mall:app")


@pytest.fixture(autouse=True)
def mall(folder: Path) -> Any:
    return write_mall(folder)


def without_times(text: str) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", "TIME", text)
    return re.sub(r"\d+(\.\d+)?(ms|s) ago", "AGO", text)


def test_a_run_that_waits_is_explained_with_the_commands_that_move_it(
    effectflow: Command, mall: Any
) -> None:
    submitted(mall, "order", 5, "o1")
    driven(mall, "o1")

    ran = effectflow("explain", "o1", *APP)

    assert ran.code == 0, ran
    assert without_times(ran.out) == (
        "o1 of order: suspended, since TIME (AGO)\n"
        "It waits for signal approval.\n"
        "waiting      signal:approval for signal approval, began AGO\n"
        "\n"
        "  effectflow send o1 approval JSON --app mall:app\n"
        "      sends the value that it waits for\n"
        "  effectflow pause o1 --app mall:app\n"
        "      lets nothing continue it until someone unpauses it\n"
        "  effectflow resume o1 --app mall:app\n"
        "      continues it in this process\n"
        "  effectflow cancel o1 --app mall:app\n"
        "      undoes its work and ends it\n"
    )
    tree = effectflow("explain", "o1", *APP, "--json").json
    assert (tree["status"], tree["due_at"], tree["owner"]) == ("suspended", None, None)
    [wait] = tree["open"]
    assert (wait["path"], wait["state"], wait["waits_for"]) == (
        "signal:approval",
        "waiting",
        "signal approval",
    )
    # The commands are as printed: what is in capitals is for the user to choose.
    for move in tree["moves"]:
        words = [
            {"JSON": '{"by": "ann", "is_given": false}'}.get(word, word)
            for word in shlex.split(move["command"])[1:]
        ]
        assert words[0] in COMMANDS
        if words[0] != "resume":
            assert effectflow(*words).code == 0


def test_a_run_that_waits_for_another_leads_to_it(effectflow: Command, mall: Any) -> None:
    submitted(mall, "deliver", 5, "d")
    driven(mall, "d", "d/order")
    said = effectflow("explain", "d", *APP).out
    assert "for run 'd/order'" in said
    assert "  effectflow explain d/order --app mall:app\n" in said


def test_hostile_errors_are_escaped_and_fit_the_width(effectflow: Command, mall: Any) -> None:
    submitted(mall, "order", 5, "o1")
    by = "\x1b[31m[bold]ann" + " and bob" * 20
    value = json.dumps({"by": by, "is_given": False})
    assert effectflow("send", "o1", "mall:approval", value, *APP).code == 0
    driven(mall, "o1")

    ran = effectflow("explain", "o1", *APP)

    assert ran.code == 0, ran
    assert "str: \\x1b[31m[bold]ann and bob" in ran.out
    assert "a retry ends with it again" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_a_damaged_run_is_explained_up_to_the_damage(effectflow: Command, mall: Any) -> None:
    submitted(mall, "order", 5, "o1")
    driven(mall, "o1")
    with closing(sqlite3.connect("mall.db")) as database, database:
        database.execute(
            "UPDATE entries SET body = CAST(replace(CAST(body AS TEXT), 'reserved', 'Reserved') AS BLOB)"
        )

    ran = effectflow("explain", "o1", *APP)

    assert ran.code == 4
    assert "Its journal is damaged, so nothing continues it." in ran.out
    assert "effectflow show o1 --at 2 --app mall:app" in ran.out
    assert "effectflow repair o1 --app mall:app" in ran.out


def test_a_paused_run_tells_who_paused_it_and_how_it_goes_on(
    effectflow: Command, mall: Any
) -> None:
    submitted(mall, "order", 5, "o1")
    paused = effectflow("pause", "o1", "--by", "ann", *APP)
    assert (paused.code, paused.out) == (0, "Run o1: paused by ann.\n")
    assert effectflow("pause", "o1", *APP).code == 4

    said = effectflow("explain", "o1", *APP).out

    assert "It was paused by ann, and no worker continues it before someone" in said
    assert "  effectflow unpause o1 --app mall:app\n" in said
    assert "\npaused    by ann, since 20" in effectflow("show", "o1", *APP).out
    ran = effectflow("unpause", "o1", *APP, "--json")
    assert (ran.code, ran.json["run_id"]) == (0, "o1")
    assert "It is due, but no worker with workflow 'order' is known." in (
        effectflow("explain", "o1", *APP).out.replace("\n", " ")
    )


def test_a_run_of_a_paused_queue_tells_how_that_goes_on(effectflow: Command, mall: Any) -> None:
    submitted(mall, "order", 5, "o1", queue="reports")
    assert "It has not begun, in queue 'reports'. It is due" in (
        effectflow("explain", "o1", *APP).out
    )
    paused = effectflow("pauses", "--pause", "queue:reports", "--by", "ann", *APP)
    assert paused.code == 0, paused

    said = effectflow("explain", "o1", *APP).out

    assert "no worker takes it before queue 'reports' is unpaused." in said.replace("\n", " ")
    command = "effectflow pauses --unpause queue:reports --app mall:app"
    assert f"  {command}\n      lets workers take its runs; ann has paused it\n" in said
    assert effectflow(*shlex.split(command)[1:]).code == 0
    assert "is unpaused" not in effectflow("explain", "o1", *APP).out


def test_an_unknown_run_is_an_error(effectflow: Command, mall: Any) -> None:
    submitted(mall, "pack", "x", "p")
    ran = effectflow("explain", "q", *APP)
    assert ran.code == 4
    assert "no run 'q' in this store" in ran.err
