"""The operations of a run, as its journal tells of them, and the explanation that follows."""

from __future__ import annotations

import anyio
import pytest

from effectflow import (
    Client,
    Do,
    Effect,
    RetryPolicy,
    Signal,
    Workflow,
    ask,
    par,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import (
    BeforeStep,
    Completed,
    Entry,
    ErrorRecord,
    Failed,
    Finished,
    Interrupted,
    Published,
    Resumed,
    RunDetails,
    RunInfo,
    RunStatus,
    RunSummary,
    Started,
    Waiting,
    fold,
    read_entries,
)
from effectflow.observe import Explanation, explain_run, operations_of
from effectflow.observe.recorded_run import RunState, states_after
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, app_on, note
from tests.service.conftest import Service
from tests.service.lives import suspended, until

pytestmark = pytest.mark.anyio

approval: Signal[str] = Signal("approval", str)
nothing: Signal[str] = Signal("nothing", str)
ERROR = ErrorRecord("Declined", "no account")


def states(entries: list[Entry]) -> dict[str, str]:
    return {one.path: one.state for one in operations_of(entries)}


def test_each_attempt_of_a_step_has_its_times_and_its_end() -> None:
    entries: list[Entry] = [
        BeforeStep("pay", at=1.0),
        Failed("pay", ERROR, True, at=2.0, retry_at=5.0),
        BeforeStep("pay", 2, at=5.0, turn=1),
        Interrupted("pay", True, "Terminated", at=6.0),
        Resumed("pid 2", 9.0),
        BeforeStep("pay", 3, at=9.0, turn=2),
        Completed("pay", "paid", 1.0, at=10.0, turn=3),
    ]

    [pay] = operations_of(entries)

    assert [(one.began, one.ended, one.state) for one in pay.attempts] == [
        (1.0, 2.0, "failed"), (5.0, 6.0, "interrupted"), (9.0, 10.0, "completed"),
    ]  # fmt: skip
    assert pay.state == "completed"
    [retrying] = operations_of(entries[:2])
    assert (retrying.state, retrying.until) == ("retrying", 5.0)


def test_an_attempt_whose_process_died_ends_with_the_last_entry_before_the_resume() -> None:
    entries: list[Entry] = [
        BeforeStep("pay", at=1.0),
        BeforeStep("par[1]/ship", at=3.0),
        Resumed("pid 2", 90.0),
        BeforeStep("pay", 2, at=91.0),
    ]

    pay, _ = operations_of(entries)

    assert [(one.began, one.ended, one.state) for one in pay.attempts] == [
        (1.0, 3.0, "interrupted"), (91.0, None, "running"),
    ]  # fmt: skip


def test_what_a_resume_voids_is_tried_again() -> None:
    entries: list[Entry] = [
        BeforeStep("pay", at=1.0),
        Failed("pay", ERROR, True, at=2.0, turn=1),
        Resumed("pid 2", 3.0, void=((2, 2),)),
    ]
    assert states(entries) == {"pay": "retrying"}


def test_states_of_one_pass_are_those_of_the_entries_until_then() -> None:
    entries: list[Entry] = [
        Started("r", "order", "code", "1", "", input=5, context={}, journal=1, at=1.0),
        BeforeStep("pay", at=1.0),
        Published("", "progress", 1, at=1.5),
        Failed("pay", ERROR, True, at=2.0, turn=1),
        BeforeStep("ship", at=2.5, turn=2),
        Resumed("pid 2", 3.0, void=((4, 4),)),
        BeforeStep("pay", 2, at=4.0, turn=3),
        Published("", "progress", 2, at=4.5),
        Completed("pay", "paid", 1.0, at=5.0, turn=4),
    ]

    found = states_after(entries, "r", range(1, 10))

    for number in range(1, 10):
        before = entries[:number]
        published = {one.key: one.value for one in before if isinstance(one, Published)}
        whole = RunState(fold(before, "r"), tuple(operations_of(before)), published)
        assert found[number] == whole


@step
def act(action: str) -> Effect[App, Broken, int]:
    return note(action)


@workflow
def raced(_: None) -> Do[App, Broken, str]:
    yield from race(nothing.wait(), act("quick"))
    first, _second = yield from par(approval.wait(), sleep(3600))
    return first


async def test_waits_that_the_run_has_left_are_not_open() -> None:
    service = Service(MemoryStore())
    async with service.worker(raced, suspend_after=0) as worker:
        handle = await worker.client.submit(raced, None, run_id="r")
        await suspended(service, "r")

        entries = await read_entries(service.store, "r")
        assert states(entries) == {
            "race[0]/signal:nothing": "left",
            "race[1]/act": "completed",
            "par[0]/signal:approval": "waiting",
            "par[1]/sleep": "waiting",
        }
        explained = await handle.explain()
        assert explained.reason == "It waits for signal approval, a time."
        assert [one.path for one in explained.open] == ["par[0]/signal:approval", "par[1]/sleep"]
        assert [str(one) for one in explained.moves] == [
            f"effectflow send r approval JSON --app {__name__}",
            "effectflow pause r",
            f"effectflow resume r --app {__name__}",
            "effectflow cancel r",
        ]


@workflow
def failing(_: None) -> Do[App, Broken, str]:
    yield from act("good")
    yield from act("bad")
    return "done"


async def explained(
    app: App, run_id: str, workflow: Workflow[App, Broken, None, str]
) -> Explanation:
    return await Client(app.checkpoints).handle(workflow, run_id).explain()


async def test_a_failed_run_names_the_step_and_the_commands() -> None:
    app = app_on(MemoryStore(), failing=["bad"])
    await failing.start(run_id="f").run(app)

    found = await explained(app, "f", failing)

    assert (found.status, found.failing) == (RunStatus.FAILED, "act#2")
    assert found.error == "tests.apps.Broken: bad#1"
    assert [one.words[0] for one in found.moves] == [
        "retry", "complete-step", "fail-step", "fork", "resume", "cancel",
    ]  # fmt: skip
    app.world.recover()
    await failing.resume("f").run(app)
    found = await explained(app, "f", failing)
    assert (found.reason, found.failing) == ("It is complete.", "")
    assert [one.words[0] for one in found.moves] == ["rerun"]


@step(at_most_once=True)
async def charge() -> str:
    app = await ask(App)
    app.world.note("charge")
    await anyio.sleep_forever()
    return "charged"


@workflow
def charging(_: None) -> Do[App, Broken, str]:
    return (yield from charge())


async def test_an_unknown_outcome_is_named_with_its_idempotency_key() -> None:
    app = app_on(MemoryStore())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(charging.start(run_id="c 1").run, app)
        await anyio.wait_all_tasks_blocked()
        assert app.world.done == ["charge"]
        held = await explained(app, "c 1", charging)
        assert held.unknown == ()
        assert held.reason == f"The {held.owner} drives it."
        tasks.cancel_scope.cancel()
    found = await explained(app, "c 1", charging)
    [unknown] = found.unknown
    assert (unknown.step, unknown.idempotency_key) == ("charge", "c%201:charge")
    assert [one.words for one in found.moves] == [
        ("pause", "c 1"),
        ("complete-step", "c 1", "charge", "JSON"),
        ("fail-step", "c 1", "charge", "MESSAGE"),
        ("resume", "c 1", "--force"),
        ("cancel", "c 1"),
    ]


@step(retry=RetryPolicy.constant(3600).with_max_retries(3))
def hopeful(action: str) -> Effect[App, Broken, int]:
    return note(action)


@workflow
def retrying(_: None) -> Do[App, Broken, int]:
    return (yield from hopeful("bad"))


async def test_a_step_between_two_attempts_is_explained_with_its_error() -> None:
    service = Service(MemoryStore())
    service.world.failing.add("bad")
    async with service.worker(retrying, suspend_after=0) as worker:
        handle = await worker.client.submit(retrying, None, run_id="r")
        info = await until(service, "r", RunStatus.SUSPENDED)
        found = await handle.explain()
    [one] = found.open
    assert (one.state, one.until) == ("retrying", pytest.approx(found.due_at, abs=0.1))
    assert found.due_at == info.summary.due_at


STARTED = Started("r", "order", "standard", "1", "", None, {}, 1, 0.0, module="shop")
CHARGING: list[Entry] = [STARTED, BeforeStep("charge", at=1.0)]


@pytest.mark.parametrize(
    ("status", "due_at", "entries", "reason", "commands"),
    [
        (RunStatus.PENDING, 99.0, [STARTED], "It has not begun.", "pause resume cancel"),
        (
            RunStatus.RUNNING,
            0.0,
            CHARGING,
            "The process that drove it has died. It is due, and continues as soon as a worker takes it.",
            "pause resume cancel",
        ),
        (
            RunStatus.INTERRUPTED,
            None,
            [*CHARGING, Interrupted("charge", True, "Terminated", at=2.0)],
            "It was stopped (Terminated), and no worker continues it by itself.",
            "pause retry resume cancel",
        ),
        (
            RunStatus.BLOCKED,
            99.0,
            CHARGING,
            "The last process could not continue it.",
            "pause retry resume cancel",
        ),
        (
            RunStatus.SUSPENDED,
            99.0,
            [
                STARTED,
                *(Waiting(f"par[{n}]/wait", None, 2.0, child=f"child-{n}") for n in range(2000)),
            ],
            "It waits for another worker.",
            f"{'explain ' * 10}pause resume cancel",
        ),
        (
            RunStatus.CANCELLED,
            None,
            [*CHARGING, Finished(RunStatus.CANCELLED, 3.0)],
            "It was cancelled, and its finalizers have run.",
            "rerun",
        ),
    ],
)
def test_the_reason_and_the_commands_follow_from_the_status(
    status: RunStatus, due_at: float | None, entries: list[Entry], reason: str, commands: str
) -> None:
    details = RunDetails(blocked="charge has changed" if status is RunStatus.BLOCKED else "")
    summary = RunSummary("order", status, 0.0, due_at, details=details)
    info = RunInfo("r", summary, 5.0, len(entries), None)

    found = explain_run(info, entries, 10.0)

    assert found.reason == reason
    assert " ".join(one.words[0] for one in found.moves) == commands
    assert found.error == details.blocked
