"""A check of code against a recorded run, and a fork of a run, from public parts of the core.

Both are the replay that a resume does, over another journal: neither needs an entry of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from returns.result import Success

from effectflow import Do, Effect, par, race, sleep, workflow
from effectflow.checkpoint import (
    Completed,
    DefinitionChanged,
    Finished,
    ResumePlan,
    RunStatus,
    find_run,
    read_entries,
)
from effectflow.checkpoint.integrity import UNSIGNED, first_digest
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, both_backends
from tests.runs.journals import AnyWorkflow, act, clock_at, cut, in_turn, start

pytestmark = pytest.mark.anyio


async def check(made: AnyWorkflow, store: MemoryStore) -> ResumePlan:
    """Replay a run that has ended by this code, and change nothing."""
    entries = await read_entries(store, "r")
    assert isinstance(entries[-1], Finished)
    copy = await cut(store, len(entries) - 1)
    return (await made.plan("r", effects=True).run(app_on(copy))).unwrap()


async def fork(store: MemoryStore, count: int, run_id: str) -> None:
    """Write the first entries of a run as another run of the same store."""
    first, *others = (await read_entries(store, "r"))[:count]
    digest, bodies = first_digest(run_id), list[bytes]()
    for entry in (replace(first, run_id=run_id), *others):
        body, digest = UNSIGNED.close(entry, digest)
        bodies.append(body)
    info = await find_run(store, "r")
    assert info is not None
    summary = replace(info.summary, status=RunStatus.RUNNING)
    await store.create(run_id, bodies, summary=summary)


@workflow
def shipping(_: object) -> Do[App, Any, object]:
    quick = race([act("book"), sleep(60).map(lambda _: "late")])
    yield from par(quick, in_turn(act("pack"), act("weigh")))
    return (yield from act("ship"))


def changed(effect: Effect[App, Any, Any]) -> AnyWorkflow:
    @workflow(name="shipping")
    def another(_: object) -> Do[App, Any, object]:
        yield from effect
        return (yield from act("ship"))

    return another


@both_backends
async def test_the_code_of_a_run_fits_its_journal(store: MemoryStore) -> None:
    await start(shipping, app_on(store))
    plan = await check(shipping, store)
    assert (plan.problem, plan.start) == (None, ())
    assert sorted(plan.skip) == [
        *("par[0]/race[0]/book", "par[1]/pack", "par[1]/weigh", "ship"),
    ]


@both_backends
async def test_a_change_that_a_recorded_run_would_notice_is_found(store: MemoryStore) -> None:
    await start(shipping, app_on(store))
    without_weighing = par(race([act("book"), sleep(60)]), act("pack"))
    plan = await check(changed(without_weighing), store)
    assert isinstance(plan.problem, DefinitionChanged)
    assert "'par[1]/weigh' has begun" in str(plan.problem)


@both_backends
async def test_a_change_after_the_end_of_what_is_recorded_is_found(store: MemoryStore) -> None:
    await start(shipping, app_on(store))
    more: AnyWorkflow = workflow(name="shipping")(
        lambda _: shipping.body(None).and_then(lambda _: act("invoice"))
    )
    plan = await check(more, store)
    assert (plan.problem, plan.start) == (None, ("invoice",))


@both_backends
async def test_a_fork_continues_from_a_prefix_as_another_run(store: MemoryStore) -> None:
    whole = await start(shipping, app_on(store))
    count = len(await read_entries(store, "r"))
    for kept in range(1, count):
        run_id = f"fork at {kept}"
        await fork(store, kept, run_id)
        app = app_on(store)
        assert await clock_at(0).run(shipping.resume(run_id), app) == whole == Success("ship")
        prefix = (await read_entries(store, "r"))[:kept]
        done = [entry.step for entry in prefix if isinstance(entry, Completed)]
        assert len(app.world.done) == 4 - len(done), kept
    # The run itself stays as it was.
    assert len(await read_entries(store, "r")) == count
