"""Failures are recorded with their trails, so that every life of a run reports the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from returns.result import Failure, Result

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    Workflow,
    bracket,
    fail,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    BeforeStep,
    Failed,
    Finished,
    RunStatus,
    Started,
    find_run,
    read_checkpoint,
    read_entries,
)
from effectflow.effects import RetryPolicy, TracedError, die, never
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, app_on, note
from tests.runs.journals import act, after_others, cut, made_of, resume, start
from tests.sweeps import in_pairs

pytestmark = pytest.mark.anyio

AnyEffect = Effect[App, Any, Any]
AnyWorkflow = Workflow[App, Any, str, Any]


@step
def failing_step(_: str) -> Effect[App, str, None]:
    return note("release").fallback(0).and_then(lambda _: fail("stuck"))


@step
def breaking_step(_: str) -> Effect[App, Broken, None]:
    return fail(Broken("release"))


@step
def go_on() -> Effect[App, Broken, int]:
    return note("go on")


RELEASES: dict[str, Callable[[str], AnyEffect]] = {
    "failing": lambda _: fail("stuck"),
    "failing step": failing_step,
    "breaking step": breaking_step,
    "defective": lambda _: die(ValueError("stuck")),
}

CANCELLED: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda use: use.timeout(1),
    "failed sibling": lambda use: par(use, after_others(fail("no"))),
    "failed item": lambda use: par_traverse(["a", "b"], lambda item: use if item == "a" else no()),
    "lost race": lambda use: race(use, after_others(fail("no"))),
    "within another": lambda use: par(use, never()).timeout(1),
}


def no() -> AnyEffect:
    return after_others(fail("no"))


def used(release: Callable[[str], AnyEffect], acquisition: AnyEffect | None = None) -> AnyEffect:
    return bracket(acquisition or act("acquire"), release, lambda _: never())


def telling(effect: Callable[[], AnyEffect], name: str = "telling") -> AnyWorkflow:
    """Return a workflow that yields the trail of a failure that it handles, after another step."""

    @workflow(name=name)
    def tell(_: str) -> Do[App, Broken, list[str]]:
        traced = (yield from effect().traced().result()).failure()
        yield from go_on()
        return [*traced.trail, "suppressed:", *map(repr, traced.suppressed)]

    return tell


async def assert_same_in_every_life(made: AnyWorkflow, store: MemoryStore) -> Result[Any, Any]:
    """Run a workflow, and resume it after each of its entries. Return its outcome."""
    whole = await start(made, app_on(store), input="input")
    count = len(await read_entries(store, "r"))
    for entries in range(1, count):
        again = await resume(made, app_on(await cut(store, entries)))
        assert repr(again) == repr(whole), f"after {entries} of {count} entries"
    return whole


@in_pairs(cancelled=CANCELLED, release=RELEASES, acquisition=["acquire", ""])
async def test_every_life_reports_the_release_that_failed_after_a_cancellation(
    store: MemoryStore,
    cancelled: str,
    release: str,
    acquisition: str,
) -> None:
    acquired = act(acquisition) if acquisition else pure("resource")
    made = telling(lambda: CANCELLED[cancelled](used(RELEASES[release], acquired)))

    told = (await assert_same_in_every_life(made, store)).unwrap()

    assert told[0].startswith("and a finalizer failed: ")
    assert told[1:] == ["suppressed:", told[0].removeprefix("and a finalizer failed: ")]


async def test_a_release_that_failed_is_not_repeated(store: MemoryStore) -> None:
    made = telling(lambda: used(failing_step).timeout(1))
    await start(made, app_on(store), input="input")
    entries = await read_entries(store, "r")
    failed = next(n for n, entry in enumerate(entries, 1) if isinstance(entry, Failed))
    app = app_on(await cut(store, failed))

    await resume(made, app)

    assert app.world.done == ["go on"]


@step
def broken() -> Effect[App, Broken, None]:
    return fail(Broken("no")).context("connecting")


@step(retry=RetryPolicy.constant(0).with_max_retries(1))
def broken_twice() -> Effect[App, Broken, None]:
    return fail(Broken("no")).context("connecting")


@step
def stuck_and_broken() -> Effect[App, Broken, None]:
    return bracket(pure("r"), lambda _: fail("stuck"), lambda _: fail(Broken("no")))  # pyright: ignore[reportReturnType]  # its releases fail with text


@workflow
def breaking(_: str) -> Do[App, Broken, None]:
    yield from broken().context("loading")


def second(gathered: AnyEffect) -> AnyEffect:
    return gathered.or_else(lambda errors: fail(errors[1]))


@step
def gathered_in_a_step() -> Effect[App, list[str], list[Any]]:
    return par_all([fail("a").context("reading"), fail("b").context("writing")])


@step
def broken_many_times() -> Do[App, Broken, None]:
    kept: list[Broken] = []
    for number in range(20):
        try:
            yield from fail(Broken(str(number))).context("connecting")
        except Broken as error:
            kept.append(error)
    raise kept[0]


FAILURES: dict[str, tuple[Callable[[], AnyEffect], list[str]]] = {
    "step": (broken, ["connecting", "suppressed:"]),
    "step with a policy": (broken_twice, ["connecting", "suppressed:"]),
    "step that raises the first of many": (broken_many_times, ["connecting", "suppressed:"]),
    "step with a release": (
        stuck_and_broken,
        ["and a finalizer failed: 'stuck'", "suppressed:", "'stuck'"],
    ),
    "called workflow": (
        lambda: breaking.call("input"),
        ["connecting", "loading", "suppressed:"],
    ),
    "one of the gathered failures of steps": (
        lambda: second(par_all([broken(), broken().context("loading")])),
        ["connecting", "loading", "suppressed:"],
    ),
    "one of the errors of a step": (lambda: second(gathered_in_a_step()), ["suppressed:"]),
    "use with a release step": (
        lambda: bracket(
            pure("r"), lambda _: go_on(), lambda _: fail(Broken("no")).context("using")
        ),
        ["using", "suppressed:"],
    ),
}


@pytest.mark.parametrize(("failing", "expected"), FAILURES.values(), ids=FAILURES)
async def test_every_life_tells_the_trail_of_a_failure(
    store: MemoryStore, failing: Callable[[], AnyEffect], expected: list[str]
) -> None:
    made = telling(failing)

    whole = await made.start("input", run_id="r").run(app_on(store))
    count = len(await read_entries(store, "r"))
    for entries in range(count - 3, count):
        again = await made.resume("r").run(app_on(await cut(store, entries)))
        assert again == whole

    assert whole.unwrap() == expected


@workflow
def failing_run(_: str) -> Do[App, Any, None]:
    yield from go_on()
    yield from race(used(failing_step), no()).context("loading")


READ: dict[str, Callable[[AnyWorkflow], AnyEffect]] = {
    "result": lambda made: made.result("r"),
    "start": lambda made: made.start("input", run_id="r", retry_failed=False),
}


@pytest.mark.parametrize("read", READ.values(), ids=READ)
async def test_the_recorded_failure_of_a_run_gives_back_its_trail(
    store: MemoryStore, read: Callable[[AnyWorkflow], AnyEffect]
) -> None:
    app = app_on(store)
    traced: TracedError[Any] = (
        await failing_run.start("input", run_id="r").traced().run(app)
    ).failure()

    again: TracedError[Any] = (await read(failing_run).traced().run(app)).failure()

    assert again == traced
    assert again.trail == ("and a finalizer failed: 'stuck'", "loading", "in run 'r'")
    assert again.suppressed == ("stuck",)


async def test_a_context_may_begin_like_the_line_of_a_failed_finalizer(store: MemoryStore) -> None:
    @workflow
    def confusing(_: str) -> Do[App, str, None]:
        yield from fail("no").context("and a finalizer failed: not really")

    app = app_on(store)
    await confusing.start("input", run_id="r").run(app)
    again: TracedError[Any] = (await confusing.result("r").traced().run(app)).failure()

    assert again.trail == ("and a finalizer failed: not really", "in run 'r'")
    assert again.suppressed == ()


# Failures whose own code raises an exception.


class NoText:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Mute(Exception):
    """One that fails to say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass(eq=False, repr=False)
class Incomparable:
    """It can be saved, and cannot be compared with what was saved."""

    number: int = 1

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no answer")

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Unset:
    """It lacks an attribute that it says it has."""

    number: int = field(init=False)


@pytest.mark.parametrize("kind", [NoText, Mute, Incomparable, Unset])
async def test_a_failure_whose_own_code_raises_is_recorded(
    store: MemoryStore, kind: type[Any]
) -> None:
    error: Any = kind()

    failing = made_of(lambda: with_checkpointing("act", fail(error), error=kind))

    ended = await failing.start(None, run_id="r").run(App(Checkpoints(store)))

    assert isinstance(ended, Failure)
    assert ended.failure() is error
    kinds = [type(entry) for entry in await read_entries(store, "r")]
    assert kinds == [Started, BeforeStep, Failed, Finished]
    info = await find_run(store, "r")
    assert info is not None

    assert info.summary.status is RunStatus.FAILED
    detail = (await read_checkpoint(store, "r")).history[0].detail
    assert "RuntimeError in Mute.__str__" in detail or kind is not Mute


async def test_a_predicate_that_raises_does_not_keep_the_failure_out_of_the_journal(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    def is_retryable(error: str) -> bool:
        raise ZeroDivisionError

    @step(retryable=is_retryable)
    def act() -> Effect[App, str, None]:
        return fail("bad")

    failing = made_of(lambda: act())

    app = App(Checkpoints(store))
    assert await failing.start(None, run_id="r").run(app) == Failure("bad")

    [failed] = [entry for entry in await read_entries(store, "r") if isinstance(entry, Failed)]
    assert (failed.error.message, failed.retryable) == ("bad", True)
    assert "ZeroDivisionError" in caplog.text
    assert (await failing.plan("r").run(app)).unwrap().retry == ("act",)


@dataclass
class Cause(Exception):
    shown: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        self.shown.append("shown")
        return "the cause"


async def test_only_of_a_defect_the_traceback_is_made(store: MemoryStore) -> None:
    cause = Cause()

    @step
    def act(is_declared: bool) -> Effect[App, ValueError, None]:
        error = ValueError("bad")
        error.__cause__ = cause
        if is_declared:
            return fail(error)
        raise error

    @workflow
    def acting(is_declared: bool) -> Do[App, ValueError, None]:
        yield from act(is_declared)

    app = App(Checkpoints(store))
    assert isinstance(await acting.start(True, run_id="typed").run(app), Failure)
    assert cause.shown == []

    with pytest.raises(ValueError, match="bad"):
        await acting.start(False, run_id="defect").run(app)
    [failed] = [one for one in await read_entries(store, "defect") if isinstance(one, Failed)]
    assert failed.error.traceback is not None
    assert "the cause" in failed.error.traceback


async def test_the_recorded_traceback_has_the_frames_of_users(store: MemoryStore) -> None:
    @step
    def act(_: None) -> Effect[App, Broken, None]:
        raise LookupError("no price")

    @workflow
    def acting(_: None) -> Do[App, Broken, None]:
        yield from act(None)

    with pytest.raises(LookupError):
        await acting.start(None, run_id="r").run(App(Checkpoints(store)))
    *_, finished = await read_entries(store, "r")
    assert isinstance(finished, Finished)
    assert finished.error is not None
    trace = str(finished.error.traceback).splitlines()
    assert [line.strip() for line in trace if line.startswith("    ") and "^" not in line] == [
        "yield from act(None)",
        'raise LookupError("no price")',
    ]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_interruption_says_how_to_continue_the_run(backend: Any) -> None:
    def press(_: None) -> Effect[App, Broken, None]:
        raise KeyboardInterrupt

    pressing = Workflow.of_steps("pressing", [press])
    app = App(Checkpoints(MemoryStore()))
    with pytest.raises(KeyboardInterrupt) as raised:
        pressing.start(None, run_id="r").run_sync(app, backend=backend)
    assert raised.value.__notes__[-1] == (
        "run 'r' was interrupted: start it again with this run_id, or resume it, and it continues"
    )
