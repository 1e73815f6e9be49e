"""`effectflow resume`: which runs it takes, where each begins, and the workflow that a run names."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from pathlib import Path

import anyio
import pytest

from effectflow.checkpoint import Checkpoint, Checkpoints, read_checkpoint
from effectflow.cli.app_loader import PlainEnvironment
from effectflow.service import Client
from effectflow.stores import FileStore, SqliteStore
from tests.cli.conftest import ENVIRONMENT, Command
from tests.programs import ran

WORK = textwrap.dedent("""
    from pathlib import Path
    from typing import Any
    from effectflow import Checkpoints, Do, Effect, Workflow, attempt, pure, step, workflow
    from effectflow.graphs import StateGraph
    from effectflow.iterative import Iterative
    from effectflow.machines import Moved, StateMachine, Transition
    from effectflow.mapreduce import MapReduce
    from effectflow.cli.app_loader import PlainEnvironment
    from effectflow.stores import SqliteStore

    def with_key(value: int) -> Effect[Any, OSError, int]:
        return attempt(lambda _: Path("key").read_text(), OSError).map(lambda _: value)

    def add(value: int) -> Effect[Any, OSError, int]:
        return pure(value + 1)

    def numbers(count: int) -> list[int]:
        return list(range(count))

    def mapped(number: int) -> Effect[Any, OSError, int]:
        return with_key(number) if number == 2 else pure(number)

    def total(values: list[int]) -> Effect[Any, OSError, int]:
        return pure(sum(values))

    def halved(number: int) -> Effect[Any, OSError, int]:
        return with_key(1) if number == 2 else pure(number // 2)

    @step
    def first(value: int) -> Effect[Any, OSError, int]:
        return pure(value)

    @step
    def second(value: int) -> Effect[Any, OSError, int]:
        return with_key(value)

    @workflow
    def code(value: int) -> Do[Any, OSError, int]:
        return (yield from second((yield from first(value))))

    steps = Workflow.of_steps("steps", [add, with_key])
    job = MapReduce("job", items=numbers, map=mapped, reduce=total, key=str, limit=1)
    rounds = Iterative("rounds", halved, converged=lambda before, after: before == after, max_rounds=9)
    graph = (
        StateGraph("graph").node("a", add).node("b", with_key).edge("a", "a", when=lambda n: n < 9)
        .edge("a", "b").entry("a").exit("b").build()
    )
    door = StateMachine(
        "door",
        initial="closed",
        transitions=[
            Transition("knock", "closed", "heard"),
            Transition("open", "heard", "open", lambda _: with_key(1).map(lambda _: Moved("open"))),
        ],
        final={"open"},
    )

    if __name__ == "__main__":
        env = PlainEnvironment(Checkpoints(SqliteStore("effectflow.db")))
        print(code.start(1, run_id="code").run_sync(env))
""")


@pytest.fixture(autouse=True)
def work(folder: Path) -> None:
    """Write the module. Its workflows fail until there is a file `key`."""
    (folder / "work").mkdir()
    (folder / "work" / "tasks.py").write_text(WORK)


def fail_all(effectflow: Command, *workflows: str) -> None:
    for name in workflows:
        given = "null" if name == "door" else "8"
        ran = effectflow("run", f"work.tasks:{name}", "--input", given, "--run-id", name)
        assert ran.code == 1, ran


@pytest.mark.parametrize(
    ("workflow", "where", "path"),
    [
        ("code", "step second", "second"),
        ("steps", "step with_key", "with_key"),
        ("job", "phase map, item 2", "map[2]/mapped"),
        ("rounds", "round 3", "round#3"),
        ("graph", "node b", "b"),
        ("door", "transition open", "open"),
    ],
)
def test_resume_tells_where_it_begins(
    effectflow: Command, folder: Path, workflow: str, where: str, path: str
) -> None:
    fail_all(effectflow, workflow)
    again = effectflow("resume", workflow, "--app", "work.tasks")
    assert f"Resuming run {workflow}: it begins with {where}.\n" in again.out

    (folder / "key").touch()
    resumed = effectflow("resume", workflow, "--app", "work.tasks", "--json").json
    assert (resumed["status"], resumed["began_with"]) == ("completed", path)
    over = effectflow("resume", workflow, "--app", "work.tasks")
    assert (over.code, "begins" in over.out) == (0, False)


def test_resume_without_app_names_the_module_to_try(effectflow: Command) -> None:
    fail_all(effectflow, "code", "graph", "door")

    for run_id in ("code", "graph", "door"):
        ran = effectflow("resume", run_id)
        assert (ran.code, ran.out) == (2, "")
        assert f"run '{run_id}' is of workflow '{run_id}': try --app work.tasks" in ran.err
    assert effectflow("show", "code", "--json").json["module"] == "work.tasks"
    assert re.search(r"^module +work.tasks$", effectflow("show", "code").out, re.MULTILINE)


@pytest.mark.parametrize("arguments", [["-m", "work.tasks"], ["work/tasks.py"]])
def test_the_module_of_a_script_is_the_one_to_import(
    effectflow: Command, folder: Path, arguments: list[str]
) -> None:
    ran([*arguments], env=ENVIRONMENT, check=True, cwd=folder)

    module = "work.tasks" if "-m" in arguments else "tasks"
    assert f"try --app {module}\n" in effectflow("resume", "code").err


def test_the_module_in_a_store_is_never_imported(effectflow: Command, folder: Path) -> None:
    (folder / "harmless.py").write_text(WORK)
    assert effectflow("run", "harmless:code", "--input", "1", "--run-id", "r").code == 1
    (folder / "harmless.py").write_text("open('imported', 'w')")
    del sys.modules["harmless"]

    assert effectflow("resume", "r").code == 2
    assert effectflow("plan", "r").code == effectflow("show", "r").code == 0
    assert not (folder / "imported").exists()


def test_a_run_of_another_workflow_named_census_is_not_one_of_the_demo(
    effectflow: Command, folder: Path
) -> None:
    (folder / "people.py").write_text(WORK.replace("def code", "def census"))
    assert effectflow("run", "people:census", "--input", "1", "--run-id", "r").code == 1

    ran = effectflow("resume", "r")
    assert (ran.code, "try --app people" in ran.err) == (2, True)
    assert "try --app people" in effectflow("plan", "r").out


def test_resume_all_takes_every_run_that_can_be_resumed(effectflow: Command, folder: Path) -> None:
    fail_all(effectflow, "code", "job", "graph")
    (folder / "key").touch()
    assert effectflow("run", "work.tasks:steps", "--input", "1", "--run-id", "done").code == 0

    ran = effectflow("resume", "--all", "--app", "work.tasks")
    assert ran.code == 0
    ended = [line.split()[1] for line in ran.out.splitlines() if ": completed; " in line]
    assert ended == ["code:", "job:", "graph:"]
    assert effectflow("list", "--resumable", "--json").json == []
    again = effectflow("resume", "--all")
    assert (again.code, again.out) == (0, "No run can be resumed.\n")
    assert effectflow("resume", "--all", "--json").json == []


def test_resume_all_names_what_it_cannot_resume_and_continues(
    effectflow: Command, folder: Path
) -> None:
    (folder / "other.py").write_text(WORK.replace("def code", "def other"))
    assert effectflow("run", "other:other", "--input", "1", "--run-id", "other").code == 1
    fail_all(effectflow, "code", "steps")
    (folder / "key").touch()

    ran = effectflow("resume", "--all")
    assert (ran.code, ran.out) == (2, "")
    assert [line.rpartition(" ")[2] for line in ran.err.splitlines()] == [
        "other", "work.tasks", "work.tasks",
    ]  # fmt: skip
    only = effectflow("resume", "--all", "--app", "work.tasks:steps", "--json")
    assert [(one["run_id"], one["status"]) for one in only.json] == [("steps", "completed")]
    ran = effectflow("resume", "--all", "--app", "work.tasks", "--json")
    assert [(one["run_id"], one["status"]) for one in ran.json] == [
        ("other", "not resumed"),
        ("code", "completed"),
    ]
    assert ran.code == 2
    assert "has no workflow 'other'" in ran.json[0]["message"]


def test_resume_all_continues_after_an_environment_that_cannot_be_made(
    effectflow: Command, folder: Path
) -> None:
    with (folder / "work" / "tasks.py").open("a") as module:
        module.write(ENVIRONMENT_THAT_FAILS_ONCE)
    fail_all(effectflow, "code", "steps")
    (folder / "key").touch()
    (folder / "broken").touch()

    ran = effectflow("resume", "--all", "--app", "work.tasks", "--json")
    assert [(one["run_id"], one["status"]) for one in ran.json] == [
        ("code", "not resumed"),
        ("steps", "completed"),
    ]
    assert "RuntimeError: not yet" in ran.json[0]["message"]
    assert ran.code == 2


ENVIRONMENT_THAT_FAILS_ONCE = """

def environment(checkpoints):
    if Path("broken").exists():
        Path("broken").unlink()
        raise RuntimeError("not yet")
    return PlainEnvironment(checkpoints)
"""


def test_the_exit_code_of_resume_all_is_that_of_the_worst_run(effectflow: Command) -> None:
    fail_all(effectflow, "code", "steps")

    assert effectflow("resume", "--all", "--app", "work.tasks").code == 1
    assert effectflow("resume", "--all", "code").code == 2
    assert effectflow("resume", "--all", "--latest").code == 2


def test_latest_takes_the_place_of_a_run_id(effectflow: Command, folder: Path) -> None:
    for command in ("show", "history", "verify", "export", "plan"):
        assert effectflow(command, "--latest").code == 2
    fail_all(effectflow, "steps")
    (folder / "key").touch()
    assert effectflow("run", "work.tasks:code", "--input", "1", "--run-id", "newest").code == 0

    for command in ("show", "history", "verify", "export"):
        latest = effectflow(command, "--latest")
        assert (latest.code, latest.out) == (0, effectflow(command, "newest").out)
        assert effectflow(command, "newest", "--latest").code == 2
    # As for `resume --latest`, the newest run that can be resumed.
    assert effectflow("plan", "--latest", "--json").json["run_id"] == "steps"
    for command in ("show", "history", "plan"):
        ran = effectflow(command)
        assert (ran.code, "either a run id or --latest" in ran.err) == (2, True)


SCRIPT = textwrap.dedent("""
    import multiprocessing, os, sys
    from effectflow import Checkpoints, Do, effect, step, workflow
    from effectflow.cli.app_loader import PlainEnvironment
    from effectflow.stores import SqliteStore

    class Declined(Exception):
        pass

    @step
    @effect(errors=Declined)
    def charge(env: object, price: int) -> str:
        raise Declined(price)

    @step
    @effect
    def tell(env: object, text: str) -> str:
        if "DIE" in os.environ:
            os._exit(9)
        return text

    @workflow
    def order(price: int) -> Do[object, Declined, str]:
        try:
            return (yield from charge(price))
        except Declined as declined:
            return (yield from tell(f"declined {declined.args}"))

    def main():
        env = PlainEnvironment(Checkpoints(SqliteStore("effectflow.db")))
        print(order.start(5, run_id="r").run_sync(env))

    if __name__ == "__main__":
        if "spawn" in sys.argv:
            process = multiprocessing.get_context("spawn").Process(target=main)
            process.start()
            process.join()
            sys.exit(process.exitcode)
        main()
""")


@pytest.mark.parametrize("first", ["script", "process of the script", "command"])
def test_a_script_and_the_command_continue_a_run_of_each_other(
    effectflow: Command, folder: Path, first: str
) -> None:
    (folder / "orders.py").write_text(SCRIPT)
    script = ["orders.py"]
    command = ["-m", "effectflow", "run", "orders:order", "--input=5", "--run-id=r"]
    dying = {"script": script, "process of the script": [*script, "spawn"], "command": command}[
        first
    ]
    died = ran(dying, env=ENVIRONMENT | {"DIE": "1"}, cwd=folder)
    assert died.returncode == 9
    assert effectflow("show", "r", "--json").json["module"] == "orders"

    if first != "command":
        assert "declined (5,)" in effectflow("resume", "r", "--app", "orders").out
    else:
        again = ran(script, env=ENVIRONMENT, cwd=folder, check=True)
        assert "<Success: declined (5,)>" in again.stdout


@pytest.mark.parametrize("kind", ["json", "binary", "export", "file"])
def test_a_run_is_resumed_from_a_checkpoint_in_a_file(
    effectflow: Command, folder: Path, kind: str
) -> None:
    store = ("--store", "file:./runs")
    started = effectflow("run", "work.tasks:job", "--input", "5", "--run-id", "r", *store)
    assert started.code == 1, started.err
    (folder / "key").touch()
    path = folder / "latest.json"
    if kind == "file":
        path = folder / "runs" / "sessions" / "latest" / "checkpoint.json"
    elif kind == "export":
        assert effectflow("export", "r", "--output", str(path), *store).code == 0
    else:
        checkpoint = anyio.run(read_from, folder / "runs")
        text = checkpoint.to_json().encode() if kind == "json" else checkpoint.to_binary()
        path.write_bytes(text)

    ran = effectflow("resume", "--checkpoint", str(path), "--app", "work.tasks")
    assert ran.code == 0, ran.err
    assert "Run r continues from its checkpoint of 20" in ran.out
    here, there = (effectflow("show", "r", *where, "--json") for where in ((), store))
    # The run stays in a FileStore, and is added to the store of the command otherwise.
    resumed = there if kind == "file" else here
    assert resumed.json["status"] == "completed"
    assert (here.code == 0) == (kind != "file")
    again = effectflow("resume", "--checkpoint", str(path), "--app", "work.tasks")
    assert again.code == 0


@pytest.mark.parametrize("data", [b'{"a": 1}', b"{", b"", b"some text", b"\x00\x01"])
def test_a_file_that_is_no_checkpoint_is_refused(
    effectflow: Command, folder: Path, data: bytes
) -> None:
    (folder / "other.json").write_bytes(data)
    ran = effectflow("resume", "--checkpoint", "other.json", "--app", "work.tasks")
    assert (ran.code, "is not a checkpoint: give the checkpoint.json" in ran.err) == (2, True)
    assert effectflow("resume", "r", "--checkpoint", "other.json").code == 2


def test_the_workflow_of_another_run_is_refused_before_it_is_said_to_continue(
    effectflow: Command, folder: Path
) -> None:
    fail_all(effectflow, "code")
    ran = effectflow("resume", "code", "--app", "work.tasks:steps")
    assert (ran.code, ran.out) == (2, "")
    assert "run 'code' is of workflow 'code', and 'work.tasks:steps' is workflow 'steps'" in ran.err
    assert "try --app work.tasks" in ran.err


def test_a_refused_resume_does_not_say_that_the_run_continues(
    effectflow: Command, folder: Path
) -> None:
    fail_all(effectflow, "steps")
    tasks = folder / "work" / "tasks.py"
    tasks.write_text(WORK.replace("[add, with_key]", "[with_key]"))
    sys.modules.pop("work.tasks")
    ran = effectflow("resume", "steps", "--app", "work.tasks")
    assert (ran.code, "has changed" in ran.out, "continues from" in ran.out) == (4, True, False), (
        ran.out
    )


def test_the_command_after_a_resume_from_a_file_store_resumes_it_again(
    effectflow: Command, folder: Path
) -> None:
    store = ("--store", "file:./runs")
    effectflow("run", "work.tasks:code", "--input", "5", "--run-id", "r", *store)
    write_app = (
        "\nfrom effectflow import App\napp = App([code], environment=PlainEnvironment, checkpoints="
    )
    with (folder / "work" / "tasks.py").open("a") as module:
        module.write(write_app + "Checkpoints(SqliteStore('other.db')))\n")
    sys.modules.pop("work.tasks")
    path = str(folder / "runs" / "sessions" / "latest" / "checkpoint.json")
    given = ("resume", "--checkpoint", path, "--app", "work.tasks:app")
    ran = effectflow(*given)
    assert (ran.code, f"Resume it with: effectflow {' '.join(given)}\n" in ran.out) == (1, True)
    (folder / "key").touch()
    refused = effectflow(*given[:-1], "work.tasks", *store)
    assert (refused.code, "leave out --store" in refused.err) == (2, True)
    assert effectflow(*given).code == 0


WAITS = textwrap.dedent("""
    from effectflow import Signal, workflow

    go = Signal("go", int)

    @workflow
    async def waits(n: int) -> int:
        return await go.wait()

    @workflow
    async def quick(n: int) -> int:
        return n
""")


def test_resume_all_leaves_a_run_that_waits(effectflow: Command, folder: Path) -> None:
    (folder / "two.py").write_text(WAITS)
    two = importlib.import_module("two")
    env = PlainEnvironment(Checkpoints(SqliteStore("effectflow.db")))

    async def interrupted() -> None:
        with anyio.move_on_after(0.1):
            await two.waits.start(1, run_id="w").run(env)
        async with Client(env.checkpoints) as client:
            await client.submit(two.quick, 1, run_id="q")

    anyio.run(interrupted)
    with_app = ("--app", "two")
    ran = effectflow("resume", "--all", *with_app, "--json")
    assert [(one["run_id"], one["status"]) for one in ran.json] == [
        ("w", "waits"),
        ("q", "completed"),
    ]
    assert ran.code == 0
    assert ran.json[0]["message"] == "It waits for signal go, and is left."
    assert effectflow("list", "--resumable", "--json").json[0]["run_id"] == "w"


async def read_from(folder: Path) -> Checkpoint:
    async with FileStore(folder) as store:
        return await read_checkpoint(store, "r")
