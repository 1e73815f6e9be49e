"""`effectflow list`: its filters, its table, and `--watch`."""

from __future__ import annotations

import os
import re
import textwrap
import time
import uuid
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path

import anyio
import pytest

from effectflow.cli import list_runs
from effectflow.observe import run_filters
from tests.cli.conftest import COMMAND, ENVIRONMENT, Command, Ended
from tests.programs import PIPE, Program

ORDERS = textwrap.dedent("""
    from dataclasses import dataclass
    from effectflow import Checkpoints, Do, Effect, fail, pure, step, workflow

    @step
    def take(item: str) -> Effect[object, str, str]:
        return fail("out of stock") if item == "hat" else pure(item)

    @workflow
    def sell(item: str) -> Do[object, str, str]:
        return (yield from take(item))

    class Refused(Exception):
        pass

    @workflow
    def refuse(_: None) -> Do[object, Refused, None]:
        yield from fail(Refused("it is 7.5.x: no"))

    @workflow
    def refund(item: str) -> Do[object, str, str]:
        return (yield from take(item))
""")

WITH_CONTEXT = textwrap.dedent("""
    import anyio
    from effectflow import Checkpoints
    from effectflow.cli.app_loader import PlainEnvironment
    from effectflow.stores import open_store
    from orders import sell

    async def main(store):
        env = PlainEnvironment(Checkpoints(open_store(store)))
        for run_id, tenant, priority in (("a", "acme", 5), ("b", "blue", 5), ("c", "acme", "high")):
            context = {"tenant": tenant, "priority": priority}
            await sell.start("cap", run_id=run_id, context=context).run(env)
""")


@pytest.fixture(autouse=True)
def orders(folder: Path) -> None:
    (folder / "orders.py").write_text(ORDERS)
    (folder / "with_context.py").write_text(WITH_CONTEXT)


def start(effectflow: Command, run_id: str, item: str = "cap", workflow: str = "sell") -> None:
    effectflow("run", f"orders:{workflow}", "--input", f'"{item}"', "--run-id", run_id)


def ids(ran: Ended) -> list[str]:
    assert ran.code == 0, ran.err
    return [run["run_id"] for run in ran.json]


def test_runs_are_found_by_one_status_or_several(effectflow: Command) -> None:
    start(effectflow, "good")
    start(effectflow, "bad", "hat")

    assert ids(effectflow("list", "--status", "failed", "--json")) == ["bad"]
    both = effectflow("list", "--status", "failed", "--status", "completed", "--json")
    assert ids(both) == ["bad", "good"]
    assert ids(effectflow("list", "--status", "interrupted", "--json")) == []
    assert "No run matches" in effectflow("list", "--status", "interrupted").out
    refused = effectflow("list", "--status", "crazy")
    assert refused.code == 2
    assert "one of pending, running, crashed, suspended, interrupted" in refused.err
    assert "not 'crazy'" in refused.err


def test_runs_are_found_by_the_time_of_their_last_entry(
    effectflow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(effectflow, "r")
    clock = time.time
    monkeypatch.setattr(list_runs.time, "time", lambda: clock() + 3600)
    now = datetime.now()

    assert ids(effectflow("list", "--since", "2h", "--json")) == ["r"]
    assert ids(effectflow("list", "--since", "59.5m", "--json")) == []
    day = (now - timedelta(days=1)).date()
    assert ids(effectflow("list", "--since", str(day), "--json")) == ["r"]
    later = (now + timedelta(minutes=5)).isoformat(timespec="minutes")
    assert ids(effectflow("list", "--since", later, "--json")) == []
    refused = effectflow("list", "--since", "yesterday")
    assert (refused.code, "30m, 2h or 7d" in refused.err) == (2, True)


@pytest.mark.parametrize("store", ["sqlite:///effectflow.db", "file:./runs"])
def test_runs_are_found_by_their_context(effectflow: Command, store: str) -> None:
    anyio.run(import_module("with_context").main, store)

    def found(*pairs: str) -> list[str]:
        options = [word for pair in pairs for word in ("--context", pair)]
        return sorted(ids(effectflow("list", *options, "--store", store, "--json")))

    assert found("tenant=acme") == ["a", "c"]
    assert found("priority=5") == ["a", "b"]
    assert found("priority=high") == ["c"]
    assert found("tenant=acme", "priority=5") == ["a"]
    assert found("tenant=") == found("colour=red") == []
    refused = effectflow("list", "--context", "acme", "--store", store)
    assert (refused.code, "KEY=VALUE" in refused.err) == (2, True)


def test_a_run_whose_context_cannot_be_read_is_named(effectflow: Command, folder: Path) -> None:
    (folder / "key").write_bytes(os.urandom(32))
    start(effectflow, "open")
    effectflow("run", "orders:sell", "--input", '"cap"', "--run-id", "sealed", "--key-file", "key")

    ran = effectflow("list", "--context", "region=eu")
    assert ran.code == 4
    assert "'sealed'" in ran.err
    assert effectflow("list").code == 0


def test_filters_see_all_runs_and_a_limit_is_told(
    effectflow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_filters, "_PAGE", 1)
    start(effectflow, "old", "hat")
    for number in range(3):
        start(effectflow, f"new{number}")

    assert ids(effectflow("list", "--status", "failed", "--limit", "1", "--json")) == ["old"]
    # The store does not find crashed runs among others, so these are filtered here.
    both = ("list", "--status", "completed", "--status", "running", "--json")
    assert ids(effectflow(*both)) == ["new2", "new1", "new0"]
    assert ids(effectflow(*both, "--limit", "2")) == ["new2", "new1"]
    # A run that was submitted to no other queue is in the one with the name of its workflow.
    assert ids(effectflow("list", "--queue", "sell", "--limit", "1", "--json")) == ["new2"]
    assert ids(effectflow("list", "--queue", "reports", "--json")) == []
    ran = effectflow("list", "--since", "1h", "--limit", "4")
    assert (len(ran.out.splitlines()), ran.err) == (5, "")
    ran = effectflow("list", "--since", "1h", "--limit", "3")
    assert (len(ran.out.splitlines()), "--limit shows more" in ran.err) == (4, True)
    ran = effectflow("list", "--limit", "3", "--json")
    assert (ids(ran), "--limit shows more" in ran.err) == (["new2", "new1", "new0"], True)


def test_an_unknown_workflow_is_answered_with_the_known_ones(effectflow: Command) -> None:
    start(effectflow, "r1")
    start(effectflow, "r2", workflow="refund")

    assert ids(effectflow("list", "--workflow", "refund", "--json")) == ["r2"]
    assert ids(effectflow("list", "--workflow", "refund", "--status", "failed", "--json")) == []
    for json in ([], ["--json"]):
        ran = effectflow("list", "--workflow", "refnd", *json)
        assert (ran.code, ran.out) == (2, "")
        assert "no run of workflow 'refnd'; its newest runs are of: refund, sell" in ran.err


def test_the_table_fits_80_columns(effectflow: Command, folder: Path) -> None:
    (folder / "mall.py").write_text(ORDERS.replace("sell", "order_processing"))
    # An id as `start` makes it.
    run_id = "order_processing-1f0c7a2e9b3d"
    effectflow("run", "mall:order_processing", "--input", '"cap"', "--run-id", run_id)

    heading, row = effectflow("list").out.splitlines()
    assert heading.split() == ["RUN", "WORKFLOW", "STATUS", "ENTRIES", "UPDATED"]
    *_, age, ago = row.split()
    assert (age[-1], ago) == ("s", "ago")
    widest = row.replace("completed", "interrupted").replace(f"{age} ago", "999d ago")
    assert max(len(heading), len(widest)) <= 80


def test_watch_shows_the_table_again_until_ctrl_c(
    effectflow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(effectflow, "r1")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt
        start(effectflow, "r2")

    monkeypatch.setattr(list_runs.time, "sleep", pause)
    ran = effectflow("list", "--watch", "--limit", "9")

    assert ran.code == 0
    assert pauses == [2, 2]
    rows = [line.split()[0] for line in ran.out.splitlines()]
    assert rows == ["RUN", "r1", "RUN", "r2", "r1"]
    assert effectflow("list", "--watch", "--json").code == 2


def test_a_failed_run_shows_its_error_and_the_process_that_drove_it(
    effectflow: Command, folder: Path
) -> None:
    start(effectflow, "bad", "hat")

    [row] = effectflow("list", "--status", "failed", "--json").json
    assert row["error"] == "str: out of stock"
    assert row["owner"] is None
    assert row["last_owner"].startswith(f"process {os.getpid()} on ")
    assert effectflow("list").out.rstrip().endswith("str: out of stock")
    shown = effectflow("show", "bad").out
    [of_step, of_run] = [line for line in shown.splitlines() if "out of stock" in line]
    assert re.fullmatch(r"  take .* failed: str: out of stock", of_step)
    assert of_run == "str: out of stock"
    assert re.search(rf"^last owner +process {os.getpid()} on", shown, re.MULTILINE)

    # The summary of a run is not encrypted, so it has only the class of the error.
    (folder / "keys").write_text(f"k {os.urandom(32).hex()}")
    options = ("--store", "sealed.db", "--encryption-keys", "keys")
    ran = effectflow("run", "orders:sell", "--input", '"hat"', "--run-id", "r", *options)
    assert ran.code == 1
    assert effectflow("list", "--json", *options).json[0]["error"] == "str"


def test_the_table_has_the_class_of_an_error_without_its_module(effectflow: Command) -> None:
    assert effectflow("run", "orders:refuse", "--input", "null", "--run-id", "r").code == 1
    assert effectflow("list").out.rstrip().endswith("  Refused: it is 7.5.x: no")


def test_the_table_of_runs_with_uuids_is_aligned(effectflow: Command) -> None:
    start(effectflow, str(uuid.UUID(int=7)))
    start(effectflow, "short")

    heading, *rows = effectflow("list").out.splitlines()
    assert {row.index("sell") for row in rows} == {heading.index("WORKFLOW")}


def test_watch_tells_how_far_running_jobs_are(
    folder: Path, effectflow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "slow.py").write_text(
        textwrap.dedent("""
            import anyio
            from effectflow import Effect, par_traverse, step, workflow

            @step
            async def wait(number: int) -> int:
                if number == 2:
                    print("third", flush=True)
                    await anyio.sleep(60)
                return number

            @workflow
            def job() -> Effect[object, object, list[int]]:
                return par_traverse([*range(5)], wait, limit=1)
        """)
    )

    def ctrl_c(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(list_runs.time, "sleep", ctrl_c)
    run = [*COMMAND, "run", "slow:job", "--run-id", "r"]
    with Program(run, env=ENVIRONMENT, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "third\n"
        assert "  2 of 5 items, about " in effectflow("list", "--watch").out
        shown = effectflow("show", "r").out
        process.kill()
    assert re.search(r"^items +2 of 5 done, about .* left$", shown, re.MULTILINE)
    # A run whose process has died has no time left.
    assert re.search(r"^items +2 of 5 done$", effectflow("show", "r").out, re.MULTILINE)


@pytest.mark.parametrize(
    ("store", "advice"),
    [
        ("sqlite:///folder", "Make the file and its folder writable, or choose another file"),
        ("file:./file/runs", "Choose a folder that can be written"),
    ],
)
def test_a_store_that_cannot_be_created_gives_advice(
    effectflow: Command, folder: Path, store: str, advice: str
) -> None:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    ran = effectflow("run", "orders:sell", "--input", '"cap"', "--store", store)
    assert (ran.code, advice in ran.out) == (4, True), ran


def test_a_database_that_may_not_be_written_can_be_read(
    effectflow: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(effectflow, "r")
    start(effectflow, "bad", "hat")
    before = {path.name: path.read_bytes() for path in folder.glob("effectflow*")}
    # The tests may run as root, who may write everything.
    monkeypatch.setattr(os, "access", lambda *_: False)

    assert ids(effectflow("list", "--json")) == ["bad", "r"]
    for command in ("show", "history", "verify"):
        assert effectflow(command, "r").code == 0
    ran = effectflow("run", "orders:sell", "--input", '"cap"')
    assert (ran.code, "could not be created: effectflow.db: it is read-only" in ran.out) == (
        4,
        True,
    )
    assert "Start it again when the cause is fixed." in ran.out
    cancelled = effectflow("cancel", "bad")
    assert (cancelled.code, cancelled.out) == (4, "")
    assert "a message for run 'bad' could not be saved: effectflow.db: it is" in cancelled.err
    assert "Send it again when the cause is fixed." in cancelled.err
    assert {path.name: path.read_bytes() for path in folder.glob("effectflow*")} == before
