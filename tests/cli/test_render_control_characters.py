"""Stored text cannot control the terminal: the commands escape control characters and markup."""

from __future__ import annotations

import json
import shlex
import textwrap
from importlib import import_module
from pathlib import Path

import anyio
import pytest

from effectflow.checkpoint import (
    CheckpointError,
    CorruptCheckpoint,
    DefinitionChanged,
    LeaseLost,
    NotSerializable,
    RunBusy,
    RunConflict,
    RunStatus,
    RunSummary,
    SaveFailed,
    StepInputChanged,
    StoreUnavailable,
    UnsupportedVersion,
)
from effectflow.checkpoint.errors import printable
from effectflow.stores import FileStore
from tests.cli.conftest import Command

EVIL = "\x1b[2J\x07\x9b31m\u202e[red]x"
SHOWN = r"\x1b[2J\x07\x9b31m\u202e[red]x"

MODULE = textwrap.dedent("""
    from effectflow import Do, Effect, fail, step, workflow
    from effectflow.machines import StateMachine, Transition

    @step
    def refuse(text: str) -> Effect[object, str, str]:
        return fail(text)

    @workflow(name="refusing\\x1b[31m")
    def refusing(text: str) -> Do[object, str, str]:
        return (yield from refuse(text))

    @workflow
    def returning(text: str) -> Do[object, str, list[str]]:
        yield from refuse("no").fallback("yes")
        return [text]

    @workflow
    def exploding(text: str) -> Do[object, str, str]:
        yield from refuse("no").fallback("yes")
        raise ValueError(text)

    words = StateMachine(
        "words", initial="a", transitions=[Transition("go", "a", "\\x1b[2J")], final={"\\x1b[2J"}
    )
""")


@pytest.fixture(autouse=True)
def module(folder: Path) -> None:
    (folder / "evil.py").write_text(MODULE)


def assert_harmless(text: str) -> None:
    assert all(character.isprintable() or character == "\n" for character in text), repr(text)


def test_printable_keeps_printable_text_only() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("naïve 日本 \\ 😀") == "naïve 日本 \\ 😀"
    assert printable("a\nb\tc") == r"a\nb\tc"
    assert printable("a\nb\tc", keep="\n\t") == "a\nb\tc"
    assert printable("\udcff") == r"\udcff"


@pytest.mark.parametrize(
    "error",
    [
        RunBusy("r", f"pid 1 on {EVIL} (b, c)", 30),
        RunBusy("r", f"pid 1 on {EVIL} (b, c)", 30, is_gone=True),
        LeaseLost("r", f"{EVIL} holds it", owner=EVIL),
        CorruptCheckpoint("r", f"its summary is damaged: {EVIL}"),
        CorruptCheckpoint(EVIL, "it is cut off", sequence=2),
        StoreUnavailable(f"/tmp/{EVIL}", "it cannot be opened"),
        SaveFailed("r", EVIL),
        NotSerializable(f"$.{EVIL}", EVIL),
        DefinitionChanged("r", "w", detail=EVIL, what=EVIL),
        StepInputChanged("r", "step", EVIL, EVIL),
        UnsupportedVersion(EVIL, 2, 1),
        RunConflict("r", EVIL),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_escape_quoted_text(error: CheckpointError) -> None:
    """Also those that the library raises, and a log then shows."""
    assert str(error).isprintable(), repr(error)
    assert r"\x1b[2J" in str(error)


async def find_with_a_damaged_run(folder: Path) -> None:
    async with FileStore(folder) as store:
        summary = RunSummary("w", RunStatus.RUNNING, 0.0)
        await store.create("r", [b"1"], summary=summary)
        checkpoint = folder / "sessions" / "r" / "checkpoint.json"
        checkpoint.write_text(json.dumps({"run_id": "r", "workflow": {EVIL: EVIL}}))
        await store.find()


def test_logs_escape_quoted_text(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    anyio.run(find_with_a_damaged_run, folder)
    assert "skipping run 'r'" in caplog.text
    assert_harmless(caplog.text)


@pytest.fixture
def any_run_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that stores already have may have ids that new runs cannot have."""
    for module in ("effectflow.runs.workflow", "effectflow.cli.run"):
        monkeypatch.setattr(import_module(module), "check_new_run_id", str)


@pytest.mark.usefixtures("any_run_id")
def test_every_command_escapes_run_ids_names_errors_and_values(effectflow: Command) -> None:
    run_id = f"r{EVIL}"
    data = json.dumps(f"{EVIL}\nsecond line")
    ran = effectflow("run", "evil:refusing", "--input", data, "--run-id", run_id)
    assert ran.code == 1
    assert SHOWN in ran.out

    outputs = [ran.out, *(effectflow(name, run_id).out for name in ("show", "history", "plan"))]
    outputs += [effectflow(name).out for name in ("list", "verify")]
    for out in outputs:
        assert_harmless(out)
    assert SHOWN in outputs[1]
    assert f"{SHOWN}\\nsecond line" in outputs[2]
    assert f"r{SHOWN}" in outputs[4]

    assert effectflow("export", "--output", "runs.jsonl").code == 0
    imported = effectflow("import", "runs.jsonl", "--store", "file:./other")
    assert imported.out == f"r{SHOWN}: imported\n"
    assert effectflow("show", run_id, "--json").json["run_id"] == run_id


@pytest.mark.parametrize("workflow", ["returning", "exploding", "words"])
def test_outputs_defects_and_states_are_escaped(effectflow: Command, workflow: str) -> None:
    data = "null" if workflow == "words" else json.dumps(EVIL)
    ran = effectflow("run", f"evil:{workflow}", "--input", data, "--run-id", "r")

    assert r"\x1b[2J" in ran.out + ran.err
    for text in (ran.out, ran.err, effectflow("show", "r").out):
        assert_harmless(text)


@pytest.mark.usefixtures("any_run_id")
def test_error_messages_are_escaped(effectflow: Command) -> None:
    effectflow("run", "evil:returning", "--input", '"x"', "--run-id", f"r{EVIL}")
    ran = effectflow("show", "rr")

    assert ran.code == 4
    assert_harmless(ran.err)


def test_an_id_made_from_a_workflow_name_has_no_control_characters(effectflow: Command) -> None:
    ran = effectflow("run", "evil:refusing", "--input", '"x"', "--json")
    assert ran.json["run_id"].startswith("refusing_[31m-")


def test_markup_is_shown_as_text(effectflow: Command) -> None:
    for run_id in ("a[b]c", "[/]", "[red]x"):
        ran = effectflow("run", "evil:refusing", "--input", '"x"', "--run-id", run_id)
        assert f"Run {run_id}: failed" in ran.out
        assert f"effectflow resume {shlex.quote(run_id)} --app" in ran.out
        assert run_id in effectflow("show", run_id).out
        assert run_id in effectflow("list").out
