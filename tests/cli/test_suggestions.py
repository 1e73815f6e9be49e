"""The commands that messages suggest find the same runs: they can be copied."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from effectflow.checkpoint import DefinitionChanged, RunNotFound, SaveFailed, StoreUnavailable
from effectflow.cli.suggestions import message_of, without_password
from effectflow.stores import MemoryStore
from tests.cli.conftest import Command, Ended
from tests.cli.services import driven, submitted, write_mall

DESK = textwrap.dedent("""
    from pathlib import Path

    from effectflow import Do, Effect, fail, pure, step, workflow


    @step
    def first(value: int) -> Effect[object, str, int]:
        return pure(value)


    @step
    def gated(value: int) -> Effect[object, str, int]:
        return pure(value) if Path("key").exists() else fail("closed")


    @workflow
    def code(value: int) -> Do[object, str, int]:
        yield from first(value)
        return (yield from gated(value))
""")

STORE = ("--store", "my orders.db")


def suggestions(ended: Ended) -> list[list[str]]:
    """Return the arguments of the commands that a command has suggested."""
    said = re.findall(
        r"`effectflow ([^`]*)`|Resume it with: effectflow (.*)", ended.out + ended.err
    )
    return [shlex.split(quoted or plain) for quoted, plain in said]


def damage(path: Path) -> None:
    """Change the recorded output of the first step of the only run."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "UPDATE entries SET body = CAST(replace(CAST(body AS TEXT), '\"output\":1', '\"output\":7')"
            " AS BLOB)"
        )
        database.commit()


@pytest.fixture
def failed(effectflow: Command, folder: Path) -> Ended:
    (folder / "desk.py").write_text(DESK)
    return effectflow("run", "desk:code", "--input", "1", "--run-id", "r", *STORE)


def test_the_suggested_resume_of_a_failed_run_works(
    effectflow: Command, folder: Path, failed: Ended
) -> None:
    [command] = suggestions(failed)
    (folder / "key").touch()
    assert effectflow(*command).code == 0


def test_the_message_about_an_unknown_run_names_the_store(
    effectflow: Command, failed: Ended
) -> None:
    [command] = suggestions(effectflow("show", "unknown", *STORE))
    assert "r  " in effectflow(*command).out


def test_the_message_of_an_empty_list_names_the_store(effectflow: Command, failed: Ended) -> None:
    [command] = suggestions(effectflow("list", "--status", "completed", *STORE))
    assert "r  " in effectflow(*command).out


@pytest.mark.parametrize(
    "arguments", [("plan", "--app", "desk"), ("resume", "--app", "desk"), ("show",), ("verify",)]
)
def test_the_commands_for_a_damaged_run_name_the_store(
    effectflow: Command, folder: Path, failed: Ended, arguments: tuple[str, ...]
) -> None:
    damage(folder / "my orders.db")

    name, *options = arguments
    show, repair = suggestions(effectflow(name, "r", *options, *STORE))
    assert (show[0], repair[0]) == ("show", "repair")
    assert "workflow" in effectflow(*show).out
    repaired = effectflow(*repair, "--yes")
    assert repaired.code == 0
    [plan] = suggestions(repaired)
    assert plan[0] == "plan"
    assert effectflow(*plan).code == 0


def test_a_hint_is_in_the_terms_of_whoever_shows_it(effectflow: Command, failed: Ended) -> None:
    unknown = RunNotFound("unknown")
    assert str(unknown) == f"{unknown.problem}. {unknown.hint}"
    assert (unknown.problem, unknown.hint) == (
        "no run 'unknown' in this store",
        "`store.find()` returns the runs of a store.",
    )
    shown = effectflow("show", "unknown", *STORE).err
    assert unknown.problem in shown
    assert unknown.hint not in shown


def test_commands_in_json_name_the_store(effectflow: Command, folder: Path, failed: Ended) -> None:
    damage(folder / "my orders.db")

    [checked] = effectflow("verify", "r", "--json", *STORE).json
    repaired = effectflow("repair", "r", "--yes", "--json", *STORE).json
    for problem in (checked["problem"], repaired["problem"]):
        assert "`effectflow repair r --store 'my orders.db'`" in problem


def test_the_commands_of_an_app_name_the_app(effectflow: Command, folder: Path) -> None:
    mall = write_mall(folder)
    submitted(mall, "pack", "box", "p")

    [command] = suggestions(effectflow("show", "q", "--app", "mall:app"))
    assert command == ["list", "--app", "mall:app"]
    assert "p  " in effectflow(*command).out


def test_runs_of_an_app_are_verified_repaired_and_moved(effectflow: Command, folder: Path) -> None:
    mall = write_mall(folder)
    (folder / "box").touch()
    submitted(mall, "pack", "box", "p")
    driven(mall, "p")

    assert "p: good" in effectflow("verify", "--app", "mall:app").out
    assert "nothing to repair" in effectflow("repair", "p", "--app", "mall:app").out
    assert effectflow("export", "--output", "runs.jsonl", "--app", "mall:app").code == 0
    assert json.loads((folder / "runs.jsonl").read_text().splitlines()[0])
    assert "already in the store" in effectflow("import", "runs.jsonl", "--app", "mall:app").out


def test_a_store_beside_an_app_replaces_that_of_the_app(effectflow: Command, folder: Path) -> None:
    mall = write_mall(folder)
    (folder / "box").touch()
    submitted(mall, "pack", "box", "p")
    effectflow("export", "--output", "runs.jsonl", "--app", "mall:app")
    effectflow("delete", "p", "--app", "mall:app")

    both = ("--app", "mall:app", *STORE)
    assert effectflow("import", "runs.jsonl", *both).code == 0
    assert "p  " in effectflow("list", *both).out
    assert "packed" in effectflow("resume", "p", *both).out
    assert "has no runs" in effectflow("list", "--app", "mall:app").out
    made = effectflow("run", "pack", "--input", '"box"', "--run-id", "q", "--detach", *both)
    assert "A worker of this store drives it" in made.out
    assert "q  " in effectflow("list", *both).out


@pytest.mark.parametrize("where", [("--app", "mall:app"), ("--store", "mall.db")])
@pytest.mark.parametrize("state", ["waiting", "failed", "paused", "ended", "asked to cancel"])
def test_each_command_that_explain_prints_works_as_it_is(
    effectflow: Command, folder: Path, where: tuple[str, str], state: str
) -> None:
    mall = write_mall(folder)
    begun = ("run", "order", "--input", "5", "--run-id", "o 1", "--detach", "--app", "mall:app")
    assert effectflow(*begun).code == 0
    driven(mall, "o 1")
    is_given = json.dumps({"by": "ann", "is_given": state != "failed"})
    if state in ("failed", "ended"):
        assert effectflow("send", "o 1", "approval", is_given, "--app", "mall:app").code == 0
        driven(mall, "o 1")
    if state == "paused":
        assert effectflow("pause", "o 1", *where).code == 0
    said = effectflow("cancel", "o 1", *where).out if state == "asked to cancel" else ""
    before = (folder / "mall.db").read_bytes()

    moves = [one["command"] for one in effectflow("explain", "o 1", *where, "--json").json["moves"]]
    if said:
        moves = [said.partition("this does: ")[2]]
    assert moves
    for command in moves:
        _, *words = [{"JSON": is_given}.get(word, word) for word in shlex.split(command)]
        if words[0] == "resume" and not said and state != "failed":
            words[0] = "plan"  # a resume would wait for the signal
        for file in folder.glob("mall.db-*"):
            file.unlink()
        (folder / "mall.db").write_bytes(before)
        ran = effectflow(*words)
        is_cancelled = words[0] == "resume" and ran.code == 1
        assert ran.code == 0 or is_cancelled, (words, ran)


def test_a_signed_run_is_cancelled_by_who_has_the_key(effectflow: Command, folder: Path) -> None:
    (folder / "sign.key").write_text("0123456789abcdef0123")
    (folder / "desk.py").write_text(DESK)
    key = (*STORE, "--key-file", "sign.key")
    effectflow("run", "desk:code", "--input", "1", "--run-id", "r", *key)

    said = effectflow("cancel", "r", *key).out
    command = said.strip().partition("this does: effectflow ")[2]

    assert effectflow(*shlex.split(command)).code == 1
    assert effectflow("show", "r", "--json", *key).json["status"] == "cancelled"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h/0?password=s3cret&db=1", "redis://h/0?password=...&db=1"),
        ("redis://:s3cret@h/0", "redis://:...@h/0"),
        (
            "postgresql://me:p@a/s3cret@h/db?sslmode=require",
            "postgresql://me:...@h/db?sslmode=require",
        ),
        (
            "postgresql://h/db?user=me&sslpassword=s3cret",
            "postgresql://h/db?user=me&sslpassword=...",
        ),
        ("postgresql://me@h/db", "postgresql://me@h/db"),
        ("my orders.db", "my orders.db"),
    ],
)
def test_a_suggested_command_has_no_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_message_about_an_unknown_run_has_no_password(
    effectflow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://me:s3cret@db.example/orders?sslpassword=s3cret"
    monkeypatch.setattr("effectflow.cli.access.open_store", lambda _: MemoryStore())

    for option in (["--store", url], []):
        monkeypatch.setenv("EFFECTFLOW_STORE", url)
        ended = effectflow("show", "unknown", *option)
        [command] = suggestions(ended)
        assert command[:2] == ["list", "--store"]
        assert "s3cret" not in ended.out + ended.err


def test_an_error_of_another_library_keeps_one_full_stop() -> None:
    error = SaveFailed("r", "it violates a check constraint.")
    assert "constraint. Every entry" in str(error)
    assert "constraint. Every entry" in message_of(error)
    assert str(StoreUnavailable("s", "the server says: no.")).endswith(": no")
    assert "cut off..." in str(SaveFailed("r", "cut off..."))


def test_force_is_advised_only_where_a_command_has_it() -> None:
    assert "--force" in message_of(DefinitionChanged("r", "w"))
    assert "--force" not in message_of(DefinitionChanged("", "w", what="the saved machine"))
