"""The commands: what they print, how they report bad use, and their exit codes."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from datetime import datetime, timedelta
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from effectflow.cli.commands import COMMANDS, make_app
from tests.cli.conftest import ENVIRONMENT, Command

MALL = textwrap.dedent("""
    from dataclasses import dataclass
    from effectflow import Checkpoints, Do, Effect, fail, pure, step, workflow

    @dataclass(frozen=True)
    class Env:
        checkpoints: Checkpoints

    @dataclass(frozen=True)
    class Order:
        item: str
        amount: int = 1

    def environment(checkpoints: Checkpoints) -> Env:
        return Env(checkpoints)

    @step
    def take(order: Order) -> Effect[Env, str, int]:
        return fail("out of stock") if order.item == "hat" else pure(order.amount)

    @workflow
    def sell(order: Order) -> Do[Env, str, int]:
        taken = yield from take(order)
        return taken * 2

    @workflow
    def buggy(_: None) -> Do[Env, str, float]:
        yield from pure(1)
        return 1 / 0

    class Closed(Exception):
        pass

    @workflow
    def closed(_: None) -> Do[Env, Closed, None]:
        yield from fail(Closed("until Monday")).context("at the desk")
""")


@pytest.fixture(autouse=True)
def mall(folder: Path) -> None:
    (folder / "mall.py").write_text(MALL)
    (folder / "quits.py").write_text("import sys; sys.exit(7)")
    code = folder / "code"
    code.mkdir()
    (code / "good.py").write_text("import os\n\ndef f(x):\n    return x if x else os\n")
    (code / "broken.py").write_text("def f(:\n")


def test_run_show_history_plan_and_list(effectflow: Command) -> None:
    ran = effectflow(
        "run", "mall:sell", "--input", '{"item": "cap", "amount": 2}', "--run-id", "r1"
    )
    assert (ran.code, ran.err) == (0, "")
    assert "r1: completed" in ran.out

    shown = effectflow("show", "r1")
    assert shown.code == 0
    assert "Completed: take" in shown.out
    assert "power loss" in shown.out
    history = effectflow("history", "r1")
    assert [line.split()[3] for line in history.out.splitlines()] == [
        "Started", "BeforeStep", "Completed", "Finished",
    ]  # fmt: skip
    assert "the run is complete" in effectflow("plan", "r1").out
    assert "r1" in effectflow("list").out


def test_nothing_is_cut_or_wrapped_on_a_narrow_terminal(
    effectflow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = "a-run-with-a-long-id-" * 3
    effectflow("run", "mall:sell", "--input", '{"item": "cap"}', "--run-id", run_id)
    monkeypatch.setenv("COLUMNS", "30")

    shown = effectflow("show", run_id).out
    assert max(len(line) for line in shown.splitlines() if run_id not in line) <= 80

    effectflow("run", "mall:sell", "--input", '{"item": "cap"}', "--run-id", "short")
    heading, short, long = effectflow("list").out.splitlines()
    # Only its own row is longer.
    assert heading.startswith("RUN    WORKFLOW  STATUS ")
    assert short.startswith("short  sell      completed")
    assert long.startswith(f"{run_id}  sell      completed")


def test_commands_print_json(effectflow: Command) -> None:
    arguments = ("mall:sell", "--input", '{"item": "cap"}', "--run-id", "r1", "--json")
    ran = effectflow("run", *arguments).json
    assert (ran["status"], ran["output"], ran["steps_run"]) == ("completed", 2, 1)
    assert effectflow("show", "r1", "--json").json["completed_steps"][0]["step"] == "take"
    plan = effectflow("plan", "r1", "--json").json
    assert (plan["skip"], plan["start"], plan["is_complete"]) == (["take"], [], True)
    [listed] = effectflow("list", "--json").json
    assert listed["run_id"] == "r1"
    assert effectflow("list", "--resumable", "--json").json == []
    shown = effectflow("show", "r1", "--json").json
    entries = effectflow("history", "r1", "--json").json
    times = [listed["created_at"], shown["created_at"], shown["state"]["at"]]
    for time in times + [entry["at"] for entry in entries]:
        assert datetime.fromisoformat(time).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "arguments", [("run", "mall:sell", "--input", '{"item": "cap"}'), ("demo", "code")]
)
@pytest.mark.parametrize("run_id", ["", " ", "r\n1", "r\x1b[31m"])
def test_an_empty_or_unprintable_run_id_is_rejected(
    effectflow: Command, arguments: tuple[str, ...], run_id: str
) -> None:
    ran = effectflow(*arguments, "--run-id", run_id)

    assert ran.code == 2
    assert "--run-id: " in ran.err
    assert "cannot be the id of a run: use text with at least one visible character" in ran.err
    assert "does not exist" in effectflow("list").err


def test_a_failure_ends_with_code_1_and_the_command_that_resumes(effectflow: Command) -> None:
    ran = effectflow("run", "mall:sell", "--input", '{"item": "hat"}', "--run-id", "r1")

    assert ran.code == 1
    assert "out of stock" in ran.out
    assert "effectflow resume r1 --app mall:sell" in ran.out
    assert effectflow("resume", "r1", "--app", "mall").code == 1
    assert effectflow("run", "mall:buggy", "--run-id", "r2").code == 1
    assert "ZeroDivisionError" in effectflow("show", "r2").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "mall"], "MODULE:WORKFLOW"),
        (["run", "mall:nothing"], "it has: buggy, closed, sell"),
        (["run", "shoop:sell"], "No module named 'shoop'"),
        (["run", "mall:sell", "--input", '{"item": }'], "line 1, column 10"),
        (["run", "mall:sell", "--input", "@missing.json"], "missing.json"),
        (["run", "mall:sell", "--input", '{"itme": "cap"}'], "itme"),
        (["run", "mall:sell"], ": give one with --input"),
        (["run", ":sell"], "MODULE:WORKFLOW"),
        (["run", "./mall:sell"], "such as shop.orders for the file shop/orders.py"),
        (["run", "mall.py:sell"], "Without .py: give the name of a module"),
        (["resume"], "give either a run id, --latest, --all or --checkpoint"),
        (["export", "r1", "--latest"], "give either a run id or --latest"),
        (["export", "--json"], "--output"),
        (["list", "--context", "=5"], "KEY=VALUE"),
        (["resume", "--latest"], "the store effectflow.db does not exist"),
        (["show", "r1"], "the store effectflow.db does not exist; name the store of the runs with"),
        (["list", "--store", "mongo://x"], "sqlite:///"),
        (["demo", "--store", "mongo://x"], "sqlite:///"),
        (["list", "--store", "sqlite:///typo.db"], "the store typo.db does not exist"),
        (["list", "--store", "file:./nosuch"], "the store nosuch does not exist"),
        (["run", "quits:sell"], "SystemExit: 7"),
        (["run", "mall:sell", "--input", '{"item": 5}'], "valid string @ $.item"),
        (["demo", "nowhere"], "not a folder"),
        (["demo", "code", "--report", "nowhere/report"], "another path with --report"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_use_ends_with_code_2_and_says_what_to_do(
    effectflow: Command, arguments: list[str], said: str
) -> None:
    ran = effectflow(*arguments)

    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_verify_reports_the_damaged_run(effectflow: Command, folder: Path) -> None:
    for run_id in ("good", "bad"):
        effectflow("run", "mall:sell", "--input", '{"item": "cap"}', "--run-id", run_id)
    ran = effectflow("verify")
    assert (ran.code, "2 runs checked, 0 damaged" in ran.out) == (0, True)
    assert "1 run checked, 0 damaged" in effectflow("verify", "good").out

    database = sqlite3.connect(folder / "effectflow.db")
    database.execute(
        "UPDATE entries SET body = CAST(replace(CAST(body AS TEXT), '\"output\":1', '\"output\":7')"
        " AS BLOB) WHERE sequence = 4"
        " AND run = (SELECT number FROM runs WHERE run_id = 'bad')"
    )
    database.commit()
    database.close()

    ran = effectflow("verify")
    assert ran.code == 4
    assert "bad: 2 of 4 entries are good" in ran.out
    assert "good: good, 4 entries" in ran.out
    [found] = effectflow("verify", "bad", "--json").json
    assert (found["good"], found["entries"]) == (2, 4)
    assert effectflow("resume", "bad", "--app", "mall").code == 4
    assert effectflow("verify", "unknown").code == 4
    assert effectflow("verify", "--key-file", "missing.key").code == 2


def test_repair_makes_a_damaged_run_resumable(effectflow: Command, folder: Path) -> None:
    effectflow("run", "mall:sell", "--input", '{"item": "cap"}', "--run-id", "r/1")
    assert "There is nothing to repair" in effectflow("repair", "r/1").out
    with closing(sqlite3.connect(folder / "effectflow.db")) as database, database:
        [body] = database.execute("SELECT body FROM entries WHERE sequence = 4").fetchone()
        row = body.replace(b'"output":1', b'"output":7')
        database.execute("UPDATE entries SET body = ? WHERE sequence = 4", (row,))
        # The row has two entries, after the size of the first one.
        [size, entries] = row.split(b"\n", 1)
        bad = entries[: int(size)]
    ran = effectflow("resume", "r/1", "--app", "mall")
    assert (ran.code, "`effectflow repair r/1`" in ran.out) == (4, True)

    assert "BeforeStep: take" in effectflow("show", "r/1", "--at", "2").out
    asked = effectflow("repair", "r/1")
    assert (asked.code, "nothing was changed" in asked.err) == (2, True)
    assert asked.out.splitlines()[1:4] == [
        "keep: 2 entries", "lose: 2 later entries", "run again: take",
    ]  # fmt: skip
    assert "a worker continues the run at once. Without workers, `effectflow plan" in asked.out
    ran = effectflow("repair", "r/1", "--yes", "--aside", "missing folder")
    assert (ran.code, "nothing was changed: cannot write" in ran.err) == (2, True)
    assert effectflow("verify", "r/1").code == 4

    (folder / "aside").mkdir()
    ran = effectflow("repair", "r/1", "--yes", "--aside", "aside", "--json")
    assert ran.code == 0
    assert (ran.json["runs_again"], ran.json["is_due"]) == (["take"], True)
    assert (ran.json["kept"], ran.json["lost"]) == (2, 2)
    [kept] = (folder / "aside").iterdir()
    assert ran.json["aside"] == f"aside/{kept.name}"
    assert kept.name.startswith("%r_1-")
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [row.get("sequence") for row in rows] == [None, 3, 4]
    assert rows[1]["text"].encode() == bad

    assert effectflow("verify", "r/1").code == 0
    assert "1 step run," in effectflow("resume", "r/1", "--app", "mall").out
    assert effectflow("repair", "unknown", "--yes").code == 4
    assert effectflow("repair", "r/1", "--json").json["problem"] is None
    assert "r/1: good" in effectflow("repair", "--latest").out
    assert effectflow("repair").code == 2


def test_show_reports_the_state_after_an_earlier_entry(effectflow: Command) -> None:
    effectflow("run", "mall:sell", "--input", '{"item": "cap"}', "--run-id", "r1")

    assert "BeforeStep: take" in effectflow("show", "r1", "--at", "2").out
    assert effectflow("show", "r1", "--at", "2", "--json").json["status"] == "running"
    ran = effectflow("show", "r1", "--at", "9")
    assert (ran.code, "the entries 1 to 4" in ran.err) == (2, True)


def test_runs_are_signed_and_encrypted_with_keys_from_files(
    effectflow: Command, folder: Path
) -> None:
    (folder / "sign.key").write_bytes(bytes(range(224, 255)) + b"\n")
    (folder / "keys").write_text(f"old {'00' * 16}\nnew {'11' * 32}\n")
    keys = ("--key-file", "sign.key", "--encryption-keys", "keys")
    ran = effectflow("run", "mall:sell", "--input", '{"item": "hat"}', "--run-id", "r1", *keys)
    assert ran.code == 1
    resume = ran.out.rpartition("Resume it with: effectflow ")[2]

    assert b'"hat"' not in (folder / "effectflow.db").read_bytes()
    for command in (["show", "r1"], ["history", "r1"], ["plan", "r1"], ["verify"]):
        assert effectflow(*command, *keys).code == 0
        assert effectflow(*command).code == 4
        assert effectflow(*command, "--key-file", "sign.key").code == 4
    assert effectflow("resume", "r1", "--app", "mall").code == 4
    assert effectflow(*resume.split()).code == 1

    (folder / "bad").write_text("only-an-id")
    for path in ("bad", "missing"):
        ran = effectflow("show", "r1", "--encryption-keys", path)
        assert (ran.code, path in ran.err) == (2, True)


def test_a_missing_driver_is_bad_use(effectflow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "effectflow.stores._file", raising=False)
    monkeypatch.setitem(sys.modules, "filelock", None)
    ran = effectflow("list", "--store", "file:./runs")

    assert (ran.code, "pip install 'effectflow[file]'" in ran.err) == (2, True)


def test_runs_can_be_exported_and_imported(effectflow: Command, folder: Path) -> None:
    for run_id in ("a", "b"):
        effectflow("run", "mall:sell", "--input", '{"item": "cap"}', "--run-id", run_id)
    ran = effectflow("export", "--output", "runs.jsonl")
    assert (ran.code, ran.out.endswith(" written to runs.jsonl\n")) == (0, True)
    listed = [run["run_id"] for run in effectflow("list", "--json").json]
    written = effectflow("export", "--output", "runs.jsonl", "--json").json
    assert sorted(written) == sorted(listed)

    ran = effectflow("import", "runs.jsonl", "--store", "file:./elsewhere")
    assert (ran.code, ran.out) == (0, "b: imported\na: imported\n")
    assert (
        "a: already in the store"
        in effectflow("import", "runs.jsonl", "--store", "file:./elsewhere").out
    )
    for command in (["show", "a", "--json"], ["history", "a", "--json"], ["verify", "--json"]):
        there = effectflow(*command, "--store", "file:./elsewhere")
        assert there.json == effectflow(*command).json
    exported = effectflow("export", "--store", "file:./elsewhere").out
    # Each store has its own time of the last change.
    both = (exported, (folder / "runs.jsonl").read_text())
    here, there = (re.sub(r'"updated_at":[\d.]+', "", text) for text in both)
    assert here == there

    refused = effectflow("import", "mall.py")
    assert (refused.code, "the file cannot be read: it is not an export" in refused.err) == (
        4,
        True,
    )
    (folder / "cut.jsonl").write_text(exported[:300])
    assert effectflow("import", "cut.jsonl", "--store", "file:./third").code == 4
    assert effectflow("import", "missing.jsonl").code == 2
    changed = exported.replace("cap", "hat", 1)
    (folder / "changed.jsonl").write_text(changed)
    effectflow("run", "mall:sell", "--input", '{"item": "tie"}', "--run-id", "b", "--store", "x.db")
    # Those that follow are imported.
    ran = effectflow("import", "changed.jsonl", "--store", "x.db")
    assert (ran.code, ran.out) == (4, "a: imported\n")
    assert "differ from the imported ones" in ran.err


def test_an_export_to_a_dash_is_on_standard_output(effectflow: Command, folder: Path) -> None:
    effectflow("run", "mall:sell", "--input", '{"item": "cap"}', "--run-id", "r")
    assert effectflow("export", "r", "--output", "-").out == effectflow("export", "r").out
    assert not (folder / "-").exists()


def test_export_skips_and_names_damaged_runs(effectflow: Command, folder: Path) -> None:
    store = ("--store", "file:./runs")
    for run_id in ("a", "bad", "c"):
        effectflow("run", "mall:sell", "--input", '{"item": "cap"}', "--run-id", run_id, *store)
    for path in (folder / "runs" / "sessions" / "bad").rglob("*.json"):
        path.write_bytes(b"{")

    ran = effectflow("export", "--output", "runs.jsonl", *store)
    assert (ran.code, "some runs were not exported: run 'bad' cannot be read" in ran.err) == (
        4,
        True,
    )
    assert effectflow("import", "runs.jsonl").out == "c: imported\na: imported\n"


def test_an_unknown_run_id_is_answered_with_a_similar_one(effectflow: Command) -> None:
    effectflow("run", "mall:sell", "--input", '{"item": "cap"}', "--run-id", "order-17")

    ran = effectflow("resume", "--latest")
    assert ran.code == 2
    assert "can be resumed" in ran.err
    ran = effectflow("show", "order-71")
    assert ran.code == 4
    assert "'order-17'" in ran.err


def test_a_file_that_is_not_a_store_ends_with_code_4(effectflow: Command) -> None:
    assert effectflow("list", "--store", "sqlite:///mall.py").code == 4
    ran = effectflow("run", "mall:sell", "--input", '{"item": "x"}', "--store", "sqlite:///mall.py")
    assert ran.code == 4
    assert "Choose another file" in ran.out


def test_demo_reports_a_file_that_cannot_be_parsed(effectflow: Command, folder: Path) -> None:
    ran = effectflow("demo", "code", "--run-id", "d", "--report", "out", "--json")

    assert ran.code == 0
    report = (folder / "out.json").read_bytes()
    assert b"broken.py: invalid syntax" in report
    assert "Files that could not be parsed" in (folder / "out.txt").read_text()
    again = effectflow("resume", "d", "--json").json
    assert (again["status"], again["steps_run"]) == ("completed", 0)


def test_help_shows_an_example_for_each_command(effectflow: Command) -> None:
    for command in make_app().registered_commands:
        name = str(command.name)
        assert f"Example: effectflow {name} " in effectflow(name, "--help").out


@pytest.mark.parametrize("package", ["typer", "cloudpickle"])
def test_the_error_for_a_missing_package_says_what_to_install(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = ['demo']; "
        "from effectflow.cli.commands import main; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 2
    assert re.search(rf"^The .* needs {package},.*pip install 'effectflow\[cli\]'$", ran.stderr)


LAZY = """
from effectflow import Do, Effect, pure, step, workflow

class Settings:
    @property
    def __class__(self) -> type:
        raise RuntimeError("settings are not configured")

settings = Settings()

@step
def count() -> Effect[object, str, int]:
    return pure(1)

@workflow
def buy(_: None) -> Do[object, str, int]:
    return (yield from count())

def __dir__() -> list[str]:
    return ["buy", "plots"]

def __getattr__(name: str) -> object:
    if name == "plots":
        raise ImportError("matplotlib is not installed")
    if name == "lazy":
        return buy
    raise AttributeError(name)
"""


def test_a_workflow_is_found_in_a_module_without_evaluating_what_is_lazy_there(
    effectflow: Command, folder: Path
) -> None:
    (folder / "mall.py").write_text(LAZY)
    for named in (["mall:buy"], ["mall:lazy"], ["buy", "--app", "mall"]):
        assert effectflow("run", *named).code == 0
    assert "it has: buy" in effectflow("run", "mall:sell").err


def test_the_version_is_that_of_the_installed_package(effectflow: Command) -> None:
    shown = effectflow("--version")
    assert (shown.code, shown.out) == (0, f"effectflow {version('effectflow')}\n")


def test_the_help_of_all_commands_imports_none_and_says_what_they_say() -> None:
    code = (
        "import sys; from effectflow.cli.commands import main; sys.argv[1:] = ['--help']\n"
        "try: main()\n"
        "finally: print(sorted(name for name in sys.modules if name.startswith('effectflow.')))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    listed = ran.stdout.splitlines()[-1]
    assert "effectflow.cli.group" in listed
    assert not any(f"effectflow.{layer}" in listed for layer in ("checkpoint", "runs", "service"))
    for row in COMMANDS.values():
        module, _, function = row.home.partition(":")
        documented = getattr(import_module(f"effectflow.cli.{module}"), function).__doc__
        assert " ".join(documented.split("\n\n")[0].split()) == row.summary


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns_and_names_arguments_in_capitals(
    effectflow: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = effectflow(name, "--help").out
    assert max(map(len, shown.splitlines())) <= 80
    [usage] = re.findall(r"Usage: effectflow (.*)", shown)
    assert not re.search(r"[a-z]", usage.removeprefix(name))
    assert "--no-" not in shown


def test_a_defect_shows_the_frames_of_the_user_and_a_failure_its_trail(
    effectflow: Command, folder: Path
) -> None:
    ran = effectflow("run", "mall:buggy")
    frames = re.findall(r'File "([^"]*)"', ran.err)
    assert frames == [str(folder / "mall.py")]
    assert ran.err.endswith("`python -X dev -m effectflow ...` shows all frames.\n")

    ran = effectflow("run", "mall:closed")
    assert ran.err == ""
    assert "The workflow failed: Closed: until Monday\n  at the desk\n" in ran.out
