"""The commands on the runs of an App: where they are, what they wait for, and messages to them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from effectflow import App, Worker, Workflow
from effectflow.checkpoint import RunStatus
from tests.cli.conftest import COMMAND, ENVIRONMENT, Command, Ended
from tests.cli.services import driven, submitted, with_handle, write_mall
from tests.programs import PIPE, Program

APP = ("--app", "mall:app")


@pytest.fixture(autouse=True)
def mall(folder: Path) -> Any:
    return write_mall(folder)


def ids(ran: Ended) -> list[str]:
    assert ran.code == 0, ran.err
    return [run["run_id"] for run in ran.json]


def test_an_app_brings_its_workflows_its_environment_and_its_store(
    effectflow: Command, folder: Path
) -> None:
    ran = effectflow("run", "named", *APP, "--run-id", "r")

    assert ran.code == 0, ran.err
    assert "corner" in ran.out
    assert ids(effectflow("list", *APP, "--json")) == ["r"]
    assert ids(effectflow("list", "--store", "mall.db", "--json")) == ["r"]
    assert not (folder / "effectflow.db").exists()


def test_a_run_remembers_the_app_as_a_hint_and_never_imports_it(effectflow: Command) -> None:
    assert effectflow("run", "pack", *APP, "--input", "5", "--run-id", "wrong").code == 2
    submitted_by_name = ("run", "named", *APP, "--run-id", "r")
    assert effectflow(*submitted_by_name).code == 0

    assert effectflow("show", "r", "--store", "mall.db", "--json").json["module"] == "mall:app"
    refused = effectflow("resume", "r", "--store", "mall.db")
    assert refused.code == 2
    assert "try --app mall:app" in refused.err
    assert effectflow("resume", "r", *APP).code == 0
    assert "the run is complete" in effectflow("plan", "r", *APP).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "mall:app"], "'mall:app' is an App: give the name of its workflow, and --app"),
        (["run", "paint", *APP], "has no workflow 'paint'; it has: deliver, named, order"),
        (["list", *APP, "--store", "other.db"], "the store other.db does not exist"),
        (["list", *APP, "--key-file", "key"], "cannot read the key file key"),
        (["list", "--app", "nowhere:app"], "cannot import module 'nowhere'"),
        (["list", "--app", "mall:order"], "'mall:order' is not an App: try mall:app or mall:empty"),
        (["run", "mall:order", *APP], "give only the name of its workflow: order"),
        (["show", "r", "--app", "mall"], "'mall' is not an App"),
        (["cancel", "r", "--app", "mall:ap"], "has no App or workflow 'ap'; it has: app, "),
        (["resume", "r", "--app", "mall:ap"], "has no App or workflow 'ap'; it has: app, "),
        (["worker", "mall:order"], "'mall:order' is not an App: try mall:app"),
        (["worker", "mall"], "'mall' is not an App"),
        (["worker", "mall:app", "--limit", "order"], "'--limit': Input should be a valid integer"),
        (
            ["worker", "mall:app", "--limit", "0"],
            "'--limit': Input should be greater than or equal to 1",
        ),
    ],
)
def test_bad_use_of_an_app_is_rejected(
    effectflow: Command, folder: Path, arguments: list[str], said: str
) -> None:
    ran = effectflow(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert not (folder / "mall.db").exists()


def test_the_store_of_the_environment_variable_is_for_commands_without_an_app(
    effectflow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    effectflow("run", "named", *APP, "--run-id", "r")
    monkeypatch.setenv("EFFECTFLOW_STORE", "other.db")
    assert ids(effectflow("list", *APP, "--json")) == ["r"]


def test_show_tells_what_a_suspended_run_waits_for_and_has_published(
    effectflow: Command, mall: Any
) -> None:
    submitted(mall, "order", 5, "o1")
    driven(mall, "o1")

    [listed] = effectflow("list", "--status", "suspended", *APP, "--json").json
    assert (listed["status"], listed["waits_for"]) == ("suspended", "signal approval")
    assert listed["due_at"] is None
    assert "waits for signal approval" in effectflow("list", *APP).out
    shown = effectflow("show", "o1", *APP).out
    assert "waits for  signal approval, since 20" in shown
    assert "progress = {'reserved': 5}" in shown
    tree = effectflow("show", "o1", *APP, "--json").json
    assert (tree["status"], tree["waits_for"]) == ("suspended", "signal approval")
    assert tree["published"] == {"progress": {"reserved": 5}}
    assert datetime.fromisoformat(tree["suspended_at"]).tzinfo == UTC
    history = [line.split()[3:] for line in effectflow("history", "o1", *APP).out.splitlines()]
    assert [words[0] for words in history] == [
        "Started", "Resumed", "Published", "BeforeStep", "Completed", "Waiting", "Suspended",
    ]  # fmt: skip
    assert history[5][-3:] == ["for", "signal", "approval"]


def test_a_run_that_sleeps_is_shown_with_the_time_until_when(
    effectflow: Command, mall: Any
) -> None:
    submitted(mall, "remind", 3, "later", delay=3 * 86400)
    submitted(mall, "remind", 2.0, "r")
    driven(mall, "r")

    runs = {run["run_id"]: run for run in effectflow("list", *APP, "--json").json}
    assert {one: run["status"] for one, run in runs.items()} == {
        "later": "pending",
        "r": "suspended",
    }
    for run, days in (("later", 3), ("r", 2)):
        left = datetime.fromisoformat(runs[run]["due_at"]) - datetime.now(UTC)
        assert days - 0.1 < left.total_seconds() / 86400 <= days
    table = effectflow("list", *APP).out
    assert "waits for a time, in 2d" in table
    assert "begins in 3d" in table
    assert "until 20" in effectflow("show", "r", *APP).out
    assert "priority 0" in effectflow("show", "later", *APP).out
    # Neither has anything to do before that time.
    assert effectflow("resume", "--all", *APP, "--json").json == []


def test_children_are_shown_with_their_parent(effectflow: Command, mall: Any) -> None:
    submitted(mall, "deliver", 5, "d")
    driven(mall, "d", "d/order")

    shown = effectflow("show", "d", *APP, "--json").json
    child = {"run_id": "d/order", "workflow": "order", "status": "suspended"}
    assert shown["children"] == [child]
    assert shown["waits_for"] == "run 'd/order'"
    assert "1 run within this one:\n  d/order of order: suspended\n" in (
        effectflow("show", "d", *APP).out
    )
    assert effectflow("show", "d/order", *APP, "--json").json["parent"] == "d"
    assert "parent     d\n" in effectflow("show", "d/order", *APP).out
    assert ids(effectflow("list", "--parent", "d", *APP, "--json")) == ["d/order"]


def test_a_signal_value_is_checked_and_shown_until_it_is_received(
    effectflow: Command, mall: Any
) -> None:
    submitted(mall, "order", 5, "o1")
    send = ("send", "o1", "approval")
    refused = effectflow(*send, '{"by": 5}', *APP)
    assert refused.code == 2
    assert "Input should be a valid string @ $.by" in refused.err
    sent = effectflow(*send, '{"by": "ann"}', "--idempotency-key", "k", *APP, "--json")
    assert sent.json == {"run_id": "o1", "status": "pending"}
    assert effectflow(*send, '{"by": "bob"}', "--idempotency-key", "k", *APP).code == 0

    [message] = effectflow("show", "o1", *APP, "--json").json["mailbox"]
    assert (message["topic"], message["key"]) == ("signal:approval", "k")
    assert message["value"] == {"by": "ann", "is_given": True}
    assert "signal approval = Approval(by='ann'" in effectflow("show", "o1", *APP).out
    driven(mall, "o1")
    shown = effectflow("show", "o1", *APP, "--json").json
    assert shown["mailbox"] == []
    assert shown["finished"]["output"] == "approved by ann"
    assert "Signalled" in effectflow("history", "o1", *APP).out
    # The run has received it, so the sender is told so instead of an error.
    assert effectflow(*send, '{"by": "ann"}', "--idempotency-key", "k", *APP).code == 0
    late = effectflow(*send, '{"by": "ann"}', *APP)
    assert late.code == 4
    assert "'o1' is completed" in late.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["send", "o1", "mall:order", "1"], "has no signal 'order'; it has: approval"),
        (["send", "o1", "mall", "1"], "has a signal 'mall'; they have: approval"),
        (["send", "o1", "mall:paint", "1"], "has no signal 'paint'; it has: approval"),
        (["send", "o1", "mall:approval", "1"], "the value does not fit Approval"),
        (["send", "o1", "mall:approval", "{by}"], "the value is not JSON"),
        (["send", "o9", "mall:approval", '{"by": "ann"}'], "no run 'o9'"),
        (["cancel", "o9"], "no run 'o9'"),
    ],
)
def test_a_message_that_nothing_can_receive_is_rejected(
    effectflow: Command, mall: Any, arguments: list[str], said: str
) -> None:
    submitted(mall, "order", 5, "o1")
    ran = effectflow(*arguments, *APP)
    assert ran.code == (4 if "no run" in said else 2)
    assert said in ran.err


def test_a_message_to_a_store_that_does_not_exist_creates_none(
    effectflow: Command, folder: Path
) -> None:
    assert effectflow("cancel", "o1", "--store", "none.db").code == 2
    assert effectflow("send", "o1", "mall:approval", '{"by": "ann"}', *APP).code == 2
    assert not list(folder.glob("*.db"))


def test_a_run_is_cancelled_by_the_worker_that_reads_the_request(
    effectflow: Command, mall: Any
) -> None:
    submitted(mall, "order", 5, "o1")
    driven(mall, "o1")
    asked = effectflow("cancel", "o1", *APP, "--json")
    assert asked.json == {"run_id": "o1", "status": "suspended"}
    assert "a request to cancel it, sent" in effectflow("show", "o1", *APP).out
    assert "it is due" in effectflow("show", "o1", *APP).out

    with_handle(mall, "order", "o1", lambda handle: worked_until_cancelled(mall, handle))
    assert effectflow("show", "o1", *APP, "--json").json["status"] == "cancelled"
    assert ids(effectflow("list", "--status", "cancelled", *APP, "--json")) == ["o1"]
    again = effectflow("cancel", "o1", *APP)
    assert again.code == 4
    assert "cancelled" in again.err


def test_the_newest_run_is_cancelled_without_its_id(effectflow: Command, mall: Any) -> None:
    submitted(mall, "order", 5, "o1")
    submitted(mall, "order", 5, "o2")
    asked = effectflow("cancel", "--latest", *APP, "--json")
    assert asked.json == {"run_id": "o2", "status": "pending"}
    assert effectflow("cancel", "o1", "--latest", *APP).code == 2
    assert effectflow("cancel", *APP).code == 2


async def worked_until_cancelled(mall: Any, handle: Any) -> None:
    async with Worker(mall.app):
        with anyio.fail_after(30):
            while await handle.status() is not RunStatus.CANCELLED:
                await anyio.sleep(0.01)


def test_a_resume_carries_out_a_request_to_cancel_and_ends_with_code_1(
    effectflow: Command, mall: Any
) -> None:
    submitted(mall, "order", 5, "o1")
    effectflow("cancel", "o1", *APP)

    resumed = effectflow("resume", "o1", *APP, "--json")
    assert (resumed.code, resumed.json["status"]) == (1, "cancelled")
    assert effectflow("show", "o1", *APP, "--json").json["status"] == "cancelled"


def test_a_declined_order_has_failed_and_says_why(effectflow: Command, mall: Any) -> None:
    submitted(mall, "order", 5, "o1")
    effectflow("send", "o1", "mall:approval", '{"by": "ann", "is_given": false}', *APP)
    driven(mall, "o1")

    assert ids(effectflow("list", "--status", "failed", *APP, "--json")) == ["o1"]
    assert "ann declined" in effectflow("show", "o1", *APP).out


def test_a_run_that_does_not_fit_the_program_is_shown_as_blocked_with_the_reason(
    effectflow: Command, mall: Any
) -> None:
    submitted(mall, "order", 5, "o1")
    driven(mall, "o1")
    effectflow("send", "o1", "mall:approval", '{"by": "ann"}', *APP)
    blueprint = mall.order.blueprint
    other = replace(blueprint, body=lambda _: mall.note("something else"))
    changed = App[Any]([Workflow(other)], environment=mall.Shop, checkpoints=mall.app.checkpoints)

    async def drive_until_blocked() -> None:
        async with Worker(changed) as worker:
            with anyio.fail_after(30):
                while not (await worker.client.find())[0].summary.details.blocked:
                    await anyio.sleep(0.01)

    anyio.run(drive_until_blocked)
    [run] = effectflow("list", *APP, "--json").json
    assert run["status"] == "blocked"
    assert "'note'" in run["blocked"]
    assert "tried again in" in effectflow("list", *APP, "--status", "blocked").out
    assert effectflow("list", *APP, "--status", "suspended", "--json").json == []
    table = effectflow("list", *APP).out
    assert max(map(len, table.splitlines())) < 160
    shown = effectflow("show", "o1", *APP).out
    assert "--force" in shown
    assert "(tried again at 20" in shown
    assert ", until " not in shown, "when it is tried again is not the end of its wait"
    # Another build of the program can continue it.
    assert effectflow("resume", "o1", *APP).code == 0


def test_the_history_shows_the_deadline_of_a_timeout_as_a_time(
    effectflow: Command, folder: Path
) -> None:
    (folder / "late.py").write_text(
        "from effectflow import pure, workflow\n"
        "@workflow\n"
        "async def late(n: int) -> int:\n"
        "    return await pure(n).timeout(1000)\n"
    )
    effectflow("run", "late:late", "--input", "1", "--run-id", "r")
    assert "Value        timeout = 20" in effectflow("history", "r").out


def test_the_history_in_json_has_times_in_iso_8601(effectflow: Command, mall: Any) -> None:
    submitted(mall, "remind", 2.0, "r")
    driven(mall, "r")

    entries = effectflow("history", "r", *APP, "--json").json
    assert [one["entry"] for one in entries] == ["started", "resumed", "waiting", "suspended"]
    times = [one["at"] for one in entries] + [entries[2]["until"]]
    assert all(datetime.fromisoformat(time).tzinfo == UTC for time in times)


@pytest.mark.parametrize(
    ("workflow", "awaited"),
    [
        ("order", "Run r waits for signal approval."),
        ("deliver", "Run r waits for run 'r/order'."),
    ],
)
def test_the_run_command_prints_what_the_run_waits_for(
    effectflow: Command, mall: Any, workflow: str, awaited: str
) -> None:
    run = [*COMMAND, "run", workflow, *APP, "--input", "5", "--run-id", "r"]
    with Program(run, env=ENVIRONMENT, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().rstrip() == awaited
        receiver = "r" if workflow == "order" else "r/order"
        sent = effectflow("send", receiver, "mall:approval", '{"by": "ann"}', *APP)
        assert f"Run {receiver} was sent signal 'approval'" in sent.out
        if workflow == "deliver":
            driven(mall, "r/order")
        assert process.wait(30) == 0
        rest = process.stdout.read()
        assert ("effectflow send r approval JSON" in rest) == (workflow == "order")
        assert f"effectflow resume r {' '.join(APP)}\n" in rest
        assert "approved by ann" in rest


def test_a_detached_run_is_left_to_a_worker(effectflow: Command, mall: Any) -> None:
    run = ("run", "order", *APP, "--input", "5", "--detach")
    submitted = effectflow(*run, "--run-id", "r")
    assert submitted.code == 0
    assert f"effectflow resume r {' '.join(APP)}" in submitted.out
    assert effectflow("show", "r", *APP, "--json").json["status"] == "pending"
    driven(mall, "r")
    assert effectflow("show", "r", *APP, "--json").json["waits_for"] == "signal approval"
    again = effectflow(*run, "--run-id", "r", "--json")
    assert again.json == {"run_id": "r", "status": "submitted"}

    assert effectflow("run", "order", *APP, "--input", '"five"', "--detach").code == 2
    refused = effectflow("run", "mall:order", "--input", "5", "--detach")
    assert (refused.code, "name it with --app MODULE:APP" in refused.err) == (2, True)


def test_detach_says_that_no_worker_continues_a_run_that_has_ended(
    effectflow: Command, mall: Any
) -> None:
    def detached(run_id: str) -> Ended:
        return effectflow("run", "order", *APP, "--input", "5", "--run-id", run_id, "--detach")

    for run_id, is_given in (("done", True), ("failed", False)):
        detached(run_id)
        with_handle(
            mall,
            "order",
            run_id,
            lambda handle, given=is_given: handle.send(mall.approval, mall.Approval("ann", given)),
        )
    driven(mall, "done", "failed")
    done, failed = detached("done"), detached("failed")
    assert (done.code, done.out) == (
        0,
        "Run done is completed: effectflow show done --app mall:app\n",
    )
    assert failed.code == 1
    assert failed.out == (
        "Run failed has failed: workers do not continue it; resume it with: effectflow resume failed "
        "--app mall:app\n"
    )
