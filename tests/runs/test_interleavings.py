"""What a run records, and what a resume does after each entry.

Each row has the journal of a whole run. Beside each entry stands what a resume does if the process died
just after that entry was durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import pytest

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    TimedOut,
    bracket,
    compensate,
    do,
    fail,
    par,
    par_traverse,
    pure,
    race,
    saga,
    sleep,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.effects import from_async, never
from effectflow.stores import MemoryStore
from effectflow.testing import crash_everywhere
from tests import sweeps
from tests.apps import App, Broken, app_on, both_backends, note
from tests.runs.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
    after_others,
    clock_at,
    cut,
    hang,
    in_turn,
    journal,
    late,
    made_of,
    next_life,
    resume,
    start,
)

pytestmark = [pytest.mark.anyio, both_backends]


def held(suffix: str = "", *, release: float = 0) -> AnyEffect:
    """Return the use of a resource, which never ends."""
    return bracket(
        act(f"acquire{suffix}"),
        lambda _: act(f"release{suffix}", release),
        lambda _: hang(f"use{suffix}"),
    )


@dataclass(frozen=True)
class Row:
    """One interleaving.

    Attributes:
        body: the body of the workflow.
        made: the workflow.
        journal: each entry of a whole run, and the actions of a resume after that entry.
        failing: the actions that fail.
        at: when the resume happens, in seconds after the start.
    """

    body: Callable[[object], Any]
    made: AnyWorkflow
    journal: list[tuple[str, str]]
    failing: tuple[str, ...] = ()
    at: float = 20


ROWS: list[Row] = []


def row(
    table: str, failing: tuple[str, ...] = (), at: float = 20
) -> Callable[[Callable[[object], Any]], AnyWorkflow]:
    """Add the row of a workflow body. In each line of `table`, the actions of the resume follow a "|"."""
    lines = table.strip().splitlines()
    pairs = [line.partition("|") for line in lines]
    journal = [(entry.strip(), done.strip()) for entry, _, done in pairs]

    def add(body: Callable[[object], Any]) -> AnyWorkflow:
        made: AnyWorkflow = workflow(body)
        ROWS.append(Row(body, made, journal, failing, at))
        return made

    return add


@row(
    """
    started | acquire use release handle
    V timeout | acquire release handle
    B acquire | acquire release handle
    C acquire | release handle
    B use | release handle
    T timeout | release handle
    X use | release handle
    B release | release handle
    C release | handle
    B handle | handle
    C handle |
    completed |
    """
)
def timeout_around_bracket(_: object) -> Do[Any, Any, Any]:
    return (yield from held().timeout(10).recover(TimedOut, lambda _: act("handle")))


@row(
    """
    started | acquire-a use-a acquire-b use-b release-b release-a
    B race[0]/acquire-a | acquire-a use-a acquire-b use-b release-b release-a
    C race[0]/acquire-a | use-a acquire-b use-b release-b release-a
    B race[0]/use-a | use-a acquire-b use-b release-b release-a
    L race[1]/local | use-a acquire-b use-b release-b release-a
    B race[1]/acquire-b | use-a acquire-b use-b release-b release-a
    C race[1]/acquire-b | use-a use-b release-b release-a
    B race[1]/use-b | use-a use-b release-b release-a
    C race[1]/use-b | use-a release-b release-a
    B race[1]/release-b | use-a release-b release-a
    C race[1]/release-b | release-a
    X race[0]/use-a | release-a
    B race[0]/release-a | release-a
    C race[0]/release-a |
    completed |
    """
)
def race_that_b_wins(_: object) -> Do[Any, Any, Any]:
    b = bracket(
        after_others(late("acquire-b", 1)), lambda _: act("release-b"), lambda _: act("use-b")
    )
    return (yield from race([held("-a"), b]))


@row(
    """
    started | acquire use b release
    B par[0]/acquire | acquire use b release
    C par[0]/acquire | use b release
    B par[0]/use | use b release
    L par[1]/local | use b release
    B par[1]/b | use b release
    F par[1]/b | release
    X par[0]/use | release
    B par[0]/release | release
    C par[0]/release |
    failed |
    """,
    failing=("b",),
)
def par_with_a_failure(_: object) -> Do[Any, Any, Any]:
    return (yield from par(held(), after_others(late("b", 1))))


@row(
    """
    started | acquire use b release
    B par_traverse[a]/acquire | acquire use b release
    C par_traverse[a]/acquire | use b release
    B par_traverse[a]/use | use b release
    L par_traverse[b]/local | use b release
    B par_traverse[b]/b | use b release
    F par_traverse[b]/b | release
    X par_traverse[a]/use | release
    B par_traverse[a]/release | release
    C par_traverse[a]/release |
    failed |
    """,
    failing=("b",),
)
def par_traverse_with_a_failure(_: object) -> Do[Any, Any, Any]:
    programs = {"a": held(), "b": after_others(late("b", 1))}
    return (yield from par_traverse(["a", "b"], lambda item: programs[item], key=str))


@row(
    """
    started | acquire use release b
    V par[0]/timeout | acquire release b
    B par[0]/acquire | acquire release b
    C par[0]/acquire | release b
    B par[0]/use | release b
    L par[1]/local | release b
    B par[1]/b | release b
    T par[0]/timeout | release b
    X par[0]/use | release b
    B par[0]/release | release b
    F par[1]/b | release
    C par[0]/release | go-on b
    failed again: F par[1]/b | go-on b
    """,
    failing=("b",),
)
def timeout_inside_par(_: object) -> Do[Any, Any, Any]:
    a = held(release=10).timeout(1).recover(TimedOut, lambda _: act("go-on"))
    return (yield from par(a, after_others(late("b", 5))))


@row(
    """
    started | a b handle
    B par[0]/a | a b handle
    C par[0]/a | b handle
    L par[1]/local | b handle
    B par[1]/b | b handle
    F par[1]/b | handle
    B handle | handle
    C handle |
    completed |
    """,
    failing=("b",),
)
def par_with_a_handler(_: object) -> Do[Any, Any, Any]:
    both: AnyEffect = par(act("a"), after_others(late("b", 1)))
    return (yield from both.recover(Broken, lambda _: act("handle")))


@row(
    """
    started | a b handle-1 handle-2
    B par[0]/a | a b handle-1 handle-2
    C par[0]/a | b handle-1 handle-2
    L par[1]/local | b handle-1 handle-2
    B par[1]/b | b handle-1 handle-2
    F par[1]/b | handle-1 handle-2
    B par#2[0]/handle-1 | handle-1 handle-2
    C par#2[0]/handle-1 | handle-2
    L par#2[1]/local | handle-2
    B par#2[1]/handle-2 | handle-2
    C par#2[1]/handle-2 |
    completed |
    """,
    failing=("b",),
)
def par_with_a_parallel_handler(_: object) -> Do[Any, Any, Any]:
    both: AnyEffect = par(act("a"), after_others(late("b", 1)))
    handler = par(act("handle-1"), after_others(act("handle-2")))
    return (yield from both.recover(Broken, lambda _: handler))


@row(
    """
    started | charge refund
    B charge | charge refund
    F charge | refund
    B refund | refund
    F refund | refund
    failed again: F refund | refund
    """,
    failing=("charge", "refund"),
)
def failure_with_a_failing_tap(_: object) -> Do[Any, Any, Any]:
    return (yield from act("charge").tap_err(lambda _: act("refund")))


@row(
    """
    started | charge refund
    B charge | charge refund
    F charge | refund
    B refund | refund
    C refund |
    failed |
    """,
    failing=("charge",),
)
def failure_with_a_tap(_: object) -> Do[Any, Any, Any]:
    return (yield from act("charge").tap_err(lambda _: act("refund")))


@row(
    """
    started | pay pay
    B pay | pay pay
    F pay | pay
    V retry | pay
    W sleep | pay
    T sleep | pay
    B pay#2 | pay
    F pay#2 | pay
    V retry#2 | pay
    failed again: F pay#2, V retry#2 | pay
    """,
    failing=("pay",),
)
def retry_around_a_step(_: object) -> Do[Any, Any, Any]:
    policy = RetryPolicy.constant(5).with_max_retries(1)
    return (yield from act("pay").retry(policy).map_err(lambda _: "gave up"))


@row(
    """
    started | charge after
    B charge | charge after
    F charge | after
    W sleep | after
    T sleep | after
    B after | after
    C after |
    completed |
    """,
    failing=("charge",),
)
def wait_after_a_handled_failure(_: object) -> Do[Any, Any, Any]:
    charged = yield from act("charge").result()
    yield from sleep(60)
    return [type(charged).__name__, (yield from act("after"))]


@row(
    """
    started | charge after
    B charge | charge after
    F charge | after
    L race[0]/local | after
    L race[1]/local cut | after
    B after | after
    C after |
    completed |
    """,
    failing=("charge",),
)
def race_after_a_handled_failure(_: object) -> Do[Any, Any, Any]:
    charged = yield from act("charge").result()
    yield from race([after_others(pure("won")), never()])
    return [type(charged).__name__, (yield from act("after"))]


@row(
    """
    started | acquire use release handle
    V timeout | acquire release handle
    V timeout#2 | acquire release handle
    B acquire | acquire release handle
    C acquire | release handle
    B use | release handle
    T timeout | release handle
    X use | release handle
    B release | release handle
    C release | handle
    B handle | handle
    C handle |
    completed |
    """
)
def timeout_inside_timeout(_: object) -> Do[Any, Any, Any]:
    inner = held().timeout(100)
    return (yield from inner.timeout(10).recover(TimedOut, lambda _: act("handle")))


@row(
    """
    started | acquire use release handle
    V timeout | acquire release handle
    B race[0]/acquire | acquire release handle
    W race[1]/sleep | acquire release handle
    C race[0]/acquire | release handle
    B race[0]/use | release handle
    T timeout | release handle
    X race[0]/use | release handle
    B race[0]/release | release handle
    C race[0]/release | handle
    B handle | handle
    C handle |
    completed |
    """
)
def timeout_around_race(_: object) -> Do[Any, Any, Any]:
    both = race([held(), sleep(100)])
    return (yield from both.timeout(10).recover(TimedOut, lambda _: act("handle")))


@row(
    """
    started | acquire-1 acquire-2 use-2 release-2 release-1 handle
    V timeout | acquire-1 release-1 handle
    B acquire-1 | acquire-1 release-1 handle
    C acquire-1 | acquire-2 release-2 release-1 handle
    B acquire-2 | acquire-2 release-2 release-1 handle
    C acquire-2 | release-2 release-1 handle
    B use-2 | release-2 release-1 handle
    T timeout | release-2 release-1 handle
    X use-2 | release-2 release-1 handle
    B release-2 | release-2 release-1 handle
    C release-2 | release-1 handle
    B release-1 | release-1 handle
    C release-1 | handle
    B handle | handle
    C handle |
    completed |
    """
)
def timeout_around_two_resources(_: object) -> Do[Any, Any, Any]:
    inner = bracket(act("acquire-1"), lambda _: act("release-1"), lambda _: held("-2"))
    return (yield from inner.timeout(10).recover(TimedOut, lambda _: act("handle")))


@row(
    """
    started | use a b
    V timeout | a b
    B use | a b
    T timeout | a b
    X use | a b
    B par[0]/a | a b
    C par[0]/a | b
    L par[1]/local | b
    B par[1]/b | b
    F par[1]/b |
    completed |
    """,
    failing=("b",),
)
def failed_decision_in_a_finalizer(_: object) -> Do[Any, Any, Any]:
    both: AnyEffect = par(act("a"), after_others(late("b", 1)))
    return (yield from hang("use").on_exit(both.result()).timeout(10).result().map(str))


@row(
    """
    started | use release-1 release-2
    V timeout | release-1 release-2
    B use | release-1 release-2
    T timeout | release-1 release-2
    X use | release-1 release-2
    B par[0]/release-1 | release-1 release-2
    C par[0]/release-1 | release-2
    L par[1]/local | release-2
    B par[1]/release-2 | release-2
    C par[1]/release-2 |
    completed |
    """
)
def finalizer_that_is_parallel(_: object) -> Do[Any, Any, Any]:
    both = par(act("release-1"), after_others(act("release-2")))
    return (yield from hang("use").on_exit(both).timeout(10).fallback("late"))


@row(
    """
    started | acquire use release handle
    V timeout | handle
    B inner | handle
    B inner/acquire | acquire release handle
    C inner/acquire | release handle
    B inner/use | release handle
    T timeout | release handle
    X inner/use | release handle
    B inner/release | release handle
    C inner/release | handle
    X inner | handle
    B handle | handle
    C handle |
    completed |
    """
)
def timeout_around_another_workflow(_: object) -> Do[Any, Any, Any]:
    inner = made_of(held, "inner").call(None)
    return (yield from inner.timeout(10).recover(TimedOut, lambda _: act("handle")))


every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.made.name)


@every_row
async def test_a_whole_run_writes_this_journal(row: Row, store: MemoryStore) -> None:
    await start(row.made, app_on(store, failing=row.failing))
    assert await journal(store) == [entry for entry, _ in row.journal]


@every_row
async def test_a_resume_after_each_entry_does_this(row: Row, store: MemoryStore) -> None:
    expected = await start(row.made, app_on(store, failing=row.failing))
    for count, (entry, done) in enumerate(row.journal, 1):
        shorter = await cut(store, count)
        app = app_on(shorter, failing=row.failing)
        result = await resume(row.made, app, at=row.at)
        assert (app.world.done, str(result)) == (done.split(), str(expected)), entry
        # The journal that the resume leaves means the same to the next life.
        again = next_life(app, failing=row.failing)
        assert str(await resume(row.made, again, at=row.at)) == str(expected), entry


@every_row
async def test_a_step_with_this_body_does_the_same(row: Row, store: MemoryStore) -> None:
    body = do(row.body)
    made = made_of(lambda: with_checkpointing("step", body(None), error=Broken | TimedOut))
    expected = await start(made, app_on(store, failing=row.failing))
    *lines, last = [line.replace("step/", "") for line in await journal(store)]
    begun, ended = row.journal[0][1], row.journal[-1][1]
    table = {**dict(row.journal[:-1]), "B step": begun, lines[-1]: ended}
    # What is held back when the step ends is not recorded: the decision not to try again.
    assert sorted(lines) == sorted(table.keys() - {"V retry#2"})
    for count, entry in enumerate([*lines, last], 1):
        if entry.startswith("V "):
            continue  # saved together with the step after it
        app = app_on(await cut(store, count), failing=row.failing)
        result = await resume(made, app, at=row.at)
        done = table.get(entry, ended)
        assert (app.world.done, str(result)) == (done.split(), str(expected)), entry


@pytest.mark.parametrize(
    # After the release of `timeout_inside_par`, a resume tries the failure of `b` again, and does more.
    "row",
    [row for row in ROWS if row.made.name != "timeout_inside_par"],
    ids=lambda row: row.made.name,
)
async def test_a_crash_before_and_after_every_append_leads_to_the_same_end(row: Row) -> None:
    def environment(store: Any) -> Any:
        return app_on(store, failing=row.failing)

    assert await crash_everywhere(row.made, None, environment)


# Each operator around each other one.


def failing_late() -> AnyEffect:
    return sleep(10).and_then(lambda _: fail(Broken("sibling")))


CANCELLING: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda effect: effect.timeout(10),
    "race": lambda effect: race([effect, sleep(10)]),
    "race that another wins before it begins": lambda effect: race([sleep(10), effect]),
    "par": lambda effect: par(effect, failing_late()),
    "par that fails before it begins": lambda effect: par(failing_late(), effect),
}
"""Operators that cancel an effect after ten seconds."""


def limited(effect: AnyEffect) -> AnyEffect:
    """Return a step with steps inside and a timeout."""

    @step(timeout=1000)
    def limited() -> Effect[Any, Broken, Any]:
        return effect

    return limited()


AROUND: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda effect: effect.timeout(1000),
    "race": lambda effect: race([effect, never()]),
    "par": lambda effect: par(effect, never()),
    "par_traverse": lambda effect: par_traverse(["a"], lambda _: effect, key=str),
    "retry": lambda effect: effect.retry(RetryPolicy.constant(1).with_max_retries(1)),
    "resource": lambda effect: bracket(act("open"), lambda _: act("close"), lambda _: effect),
    "saga": lambda effect: saga(compensate(act("book"), lambda _: act("undo")).zip(effect)),
    "step": lambda effect: with_checkpointing("step", effect, error=Broken | TimedOut),
    "call": lambda effect: made_of(lambda: effect, "called").call(None),
    "step with a timeout": limited,
}
"""What may be between the operator that cancels and the resource."""

PAIRS = {"acquire": "release", "open": "close", "book": "undo"}


def steps(kind: str, lines: list[str]) -> list[str]:
    """Return the names of the steps with this kind of entry, without what is around them."""
    return [line[2:].rpartition("/")[2] for line in lines if line.startswith(f"{kind} ")]


def check_life(before: list[str], app: App, after: list[str]) -> None:
    """Raise if a life repeated a step, used what was released, or left anything acquired."""
    assert set(steps("C", before)).isdisjoint(app.world.done)
    if "release" in steps("B", before):
        assert "use" not in app.world.done
    ended = steps("C", after)
    for acquire, release in PAIRS.items():
        assert ended.count(acquire) == ended.count(release) <= 1


@sweeps.in_turn(around=AROUND, cancelling=CANCELLING)
async def test_what_a_cancelled_operator_holds_is_released_wherever_a_crash_falls(
    store: MemoryStore,
    cancelling: str,
    around: str,
) -> None:
    between = AROUND[around]
    made = made_of(lambda: CANCELLING[cancelling](between(held())).result().map(repr))
    expected = await start(made, app_on(store))
    lines = await journal(store)
    assert [line[0] for line in lines if line.endswith("release")] == ["B", "C"]
    for count, line in enumerate(lines, 1):
        app = app_on(await cut(store, count))
        with anyio.fail_after(10):
            assert await resume(made, app, at=100) == expected, line
        check_life(lines[:count], app, await journal(app.checkpoints.store))


# An operator that cancels while the inner one, which has decided, releases what it cancelled.

DECIDED: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda effect: effect.timeout(5),
    "race": lambda effect: race([effect, sleep(5)]),
    "par": lambda effect: par(effect, sleep(5).and_then(lambda _: fail(Broken("inner")))),
}


@sweeps.in_turn(cancelling=CANCELLING, inner=DECIDED)
async def test_an_operator_that_decides_while_an_inner_one_releases_is_resumed_after_each_entry(
    store: MemoryStore,
    cancelling: str,
    inner: str,
) -> None:
    decided = DECIDED[inner](held(release=10)).result().and_then(lambda _: hang("go-on"))
    made = made_of(lambda: CANCELLING[cancelling](decided).result().map(repr))
    expected = await start(made, app_on(store))
    lines = await journal(store)
    # Each of the two decides when its time has come.
    assert len(steps("T", lines)) == 2, lines
    for count, line in enumerate(lines, 1):
        app = app_on(await cut(store, count))
        with anyio.fail_after(10):
            assert await resume(made, app, at=100) == expected, line
        check_life(lines[:count], app, await journal(app.checkpoints.store))


# A run that is stopped from outside.


async def test_a_stop_during_a_release_leaves_the_next_release_to_the_resume(
    store: MemoryStore,
) -> None:
    """The first row, with two release steps, and a stop after the first one began."""
    app, clock = app_on(store), clock_at()
    work: AnyEffect = note("release-1").and_then(lambda _: from_async(lambda _: clock.sleep(5)))
    both = in_turn(with_checkpointing("release-1", work), act("release-2"))
    used = hang("use").on_exit(both).timeout(10)
    made = made_of(lambda: used.recover(TimedOut, lambda _: act("handle")))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(made.start(None, run_id="r").run, app, clock=clock))
        await clock.advance(12)
        assert app.world.done == ["use", "release-1"]
        tasks.cancel_scope.cancel()
        # The finalizer in progress is shielded.
        with anyio.CancelScope(shield=True):
            await clock.advance(10)
    assert (await journal(store))[-3:] == ["B release-1", "C release-1", "I"]
    again = next_life(app)
    assert str(await resume(made, again, at=30)) == "<Success: handle>"
    assert again.world.done == ["release-2", "handle"]
