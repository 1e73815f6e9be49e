"""Thirty edits of a realistic workflow: a check finds those that runs diverge from, and no others.

A whole run of the code before the edit is recorded. Then another run stands after each of its entries, as
a crash leaves it. A check of all of them says what a resume of each of them does.
`tests/runs/test_edits.py` has more edits, one for each operator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from effectflow import (
    App as Service,
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    Worker,
    Workflow,
    do,
    now,
    par,
    par_traverse,
    pure,
    sleep,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import (
    CheckpointError,
    CorruptCheckpoint,
    DefinitionChanged,
    NotSerializable,
    RunStatus,
    StepInputChanged,
    export_run,
    find_run,
    import_run,
    read_entries,
    write_exported,
)
from effectflow.checkpoint.integrity import UNSIGNED, first_digest
from effectflow.effects import from_async, traverse
from effectflow.stores import MemoryStore
from effectflow.testing import Checked, Misfit, TestClock, check_runs
from tests.apps import App, Broken, World, note
from tests.runs.journals import act, cut, in_turn, made_of

pytestmark = pytest.mark.anyio

logger = logging.getLogger(__name__)

AnyWorkflow = Workflow[Any, Any, Any, Any]
Body = Callable[[Any], Generator[Effect[Any, Any, Any], Any, Any]]


@dataclass(frozen=True)
class Order:
    customer: str
    items: tuple[str, ...]


@dataclass(frozen=True)
class LaterOrder:
    customer: str
    items: tuple[str, ...]
    currency: str


ORDER = Order("ada", ("cap", "scarf", "tie"))


# The code before: what runs in progress have recorded.


@step
def reserve(customer: str) -> Effect[App, Broken, int]:
    return note(f"reserve for {customer}").map(lambda _: 7)


@step
def quote(item: str) -> Effect[App, Broken, int]:
    return note(f"quote {item}").map(lambda _: len(item))


@step
def approve(total: int) -> Effect[App, Broken, str]:
    return note(f"approve {total}").map(lambda _: "ann")


@step
def pack(item: str) -> Effect[App, Broken, str]:
    return note(f"pack {item}").map(lambda _: f"box of {item}")


@step
def charge(customer: str, total: int) -> Effect[App, Broken, str]:
    return note(f"charge {customer} {total}").map(lambda _: f"{total} paid")


@workflow
def label(item: str) -> Do[App, Broken, str]:
    return (yield from charge(item, 1))


@workflow
def checkout(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


# The code after.


@dataclass(frozen=True)
class Edit:
    """The code after an edit.

    Attributes:
        was, now: the recorded operation that it does not reach in its place, and what it reaches instead;
            both "" for an edit that fits all runs.
    """

    made: AnyWorkflow
    was: str = ""
    now: str = ""


EDITS: dict[str, Edit] = {}


def fits(what: str, **options: Any) -> Callable[[Body], None]:
    """Add an edit that fits each run in progress."""
    return diverges(what, "", "", **options)


def diverges(what: str, was: str, now: str, **options: Any) -> Callable[[Body], None]:
    """Add an edit that runs in progress diverge from, once they have recorded `was`."""

    def add(body: Body) -> None:
        EDITS[what] = Edit(workflow(**{"name": "checkout", **options})(body), was, now)

    return add


@fits("comments, logging, other names of variables and an annotation that still fits")
def _(bought: Order) -> Do[App, Any, object]:
    logger.info("an order of %s", bought.customer)
    yield from reserve(bought.customer)
    each = yield from par_traverse(bought.items, quote, key=str, limit=2)
    total = sum(each)
    if total > 10:
        # The boss wants to know.
        yield from approve(total)
    for thing in bought.items:
        yield from pack(thing)
    yield from sleep(60)
    return (yield from charge(bought.customer, total))


@do
def packed(items: Sequence[str]) -> Do[App, Broken, None]:
    for item in items:
        yield from pack(item)


@fits("a part of it is extracted into a function")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    yield from packed(order.items)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@step(name="charge", retry=RetryPolicy.exponential(5).with_max_retries(9))
def charge_by_bank(customer: str, total: int, currency: str = "EUR") -> Effect[App, Broken, Any]:
    return note(f"charge {customer} {total} {currency}").map(lambda _: f"{total} paid")


@step(name="reserve")
async def reserve_async(customer: str) -> int | str:
    await note(f"reserve for {customer}")
    return 7


@fits("steps by functions of another module, with other code, a retry policy and a new default")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve_async(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge_by_bank(order.customer, sum(prices)))


@fits("another limit of parallel branches, a timeout, a retry and a handler")
def _(order: Order) -> Do[App, Any, str]:
    yield from reserve(order.customer).timeout(60)
    prices = yield from par_traverse(order.items, quote, key=str, limit=3)
    if sum(prices) > 10:
        yield from approve(sum(prices)).recover(Broken, lambda _: pure("nobody"))
    for item in order.items:
        yield from pack(item).retry(RetryPolicy.constant(0).with_max_retries(2))
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@fits("another order of the items with keys")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(sorted(order.items)[::-1], quote, key=str)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@fits("a loop by traverse, a longer sleep, and the time is looked at")
def _(order: Order) -> Do[App, Broken, str]:
    yield from now()
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    yield from traverse(order.items, pack)
    yield from sleep(90)
    return (yield from charge(order.customer, sum(prices)))


@fits("steps added at the end, and in a branch that the runs do not take")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    if order.customer == "eve":
        yield from approve(0)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    paid = yield from charge(order.customer, sum(prices))
    yield from pack("receipt")
    return paid


async def as_coroutine(order: Order) -> str:
    await reserve(order.customer)
    prices = await par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        await approve(sum(prices))
    for item in order.items:
        await pack(item)
    await sleep(60)
    return await charge(order.customer, sum(prices))


EDITS["an async body"] = Edit(workflow(name="checkout")(as_coroutine))


@diverges("two steps change places", "reserve", "par_traverse[]/quote")
def _(order: Order) -> Do[App, Broken, str]:
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    yield from reserve(order.customer)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@diverges("a step is removed", "approve", "pack")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@diverges("the last step is removed", "charge", "")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return "for free"


@diverges("a step is added before others", "par_traverse[]/quote", "approve")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    yield from approve(0)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@step
def bill(customer: str, total: int) -> Effect[App, Broken, str]:
    return charge.function(customer, total)


@diverges("a step is renamed", "charge", "bill")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from bill(order.customer, sum(prices)))


@diverges("an argument is changed", "charge", "charge")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices) + 1))


@step(name="charge")
def charge_with_names(payer: str, amount: int) -> Effect[App, Broken, str]:
    return charge.function(payer, amount)


@diverges("the parameters of a step are renamed", "charge", "charge")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge_with_names(order.customer, sum(prices)))


@diverges("a loop ends earlier", "pack", "sleep")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items[:2]:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@diverges("a loop goes on for longer", "sleep", "pack")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in (*order.items, "card"):
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@diverges("a branch is flipped", "approve", "pack")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 100:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@diverges("the key of branches is changed", "par_traverse[]/quote", "par_traverse[]/quote")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str.upper, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@diverges("parallel work is done in order", "par_traverse[]/quote", "quote")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from traverse(order.items, quote)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@diverges("work in order is done in parallel", "pack", "par_traverse[]/pack")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    yield from par_traverse(order.items, pack)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


@diverges("a step becomes a call of another workflow", "charge", "label")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from label.call(order.customer))


@diverges("a sleep is removed", "sleep", "charge")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    return (yield from charge(order.customer, sum(prices)))


@diverges("a step takes the place of a sleep", "sleep", "reserve")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from reserve(order.customer)
    return (yield from charge(order.customer, sum(prices)))


@step(name="quote")
def quote_in_cents(item: str) -> Effect[App, Broken, str]:
    return note(f"quote {item}").map(lambda _: "4.00")


@diverges("the type of an output is changed", "", "not of the declared type str")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote_in_cents, key=str, limit=2)
    yield from approve(len(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, len(prices)))


@diverges("the type of the input is changed", "", "Order")
def _(order: LaterOrder) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    return order.currency


@diverges("the code fails on what is recorded", "", "KeyError")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    return {"": "free"}[str(sum(prices))]


@diverges("the version is changed without a migration", "", "version", version="2")
def _(order: Order) -> Do[App, Broken, str]:
    yield from reserve(order.customer)
    prices = yield from par_traverse(order.items, quote, key=str, limit=2)
    if sum(prices) > 10:
        yield from approve(sum(prices))
    for item in order.items:
        yield from pack(item)
    yield from sleep(60)
    return (yield from charge(order.customer, sum(prices)))


# Tests.


async def recorded() -> MemoryStore:
    """Return a store with a run that stands after each entry of a run of the code before."""
    store = MemoryStore()
    app = App(Checkpoints(store), World())
    clock = TestClock()
    assert (await clock.run(checkout.start(ORDER, run_id="r"), app)).unwrap() == "11 paid"
    first, *others = await read_entries(store, "r")
    info = await find_run(store, "r")
    assert info is not None
    summary = replace(info.summary, status=RunStatus.RUNNING)
    for count in range(len(others)):
        digest, bodies = first_digest(f"after {count}"), list[bytes]()
        for entry in (replace(first, run_id=f"after {count}"), *others[:count]):
            body, digest = UNSIGNED.close(entry, digest)
            bodies.append(body)
        await store.create(f"after {count}", bodies, summary=summary)
    await store.delete("r")
    return store


def service_of(*workflows: AnyWorkflow, store: MemoryStore, world: World | None = None) -> Service:
    return Service(
        workflows,
        environment=lambda checkpoints: App(checkpoints, world or World()),
        checkpoints=Checkpoints(store),
    )


async def state_of(store: MemoryStore) -> object:
    return [(info, await store.read(info.run_id)) for info in await store.find()]


async def diverges_in_a_resume(made: AnyWorkflow, app: App, run_id: str) -> bool:
    """Return whether a resume is rejected, or fails by a defect, before it does anything."""
    try:
        result = await TestClock().run(made.resume(run_id), app)
    except KeyError:
        return app.world.done == []
    error = result.failure() if not isinstance(result.value_or(None), str) else None
    assert error is None or isinstance(error, CheckpointError), error
    return isinstance(
        error, DefinitionChanged | StepInputChanged | NotSerializable | CorruptCheckpoint
    )


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_a_check_says_what_resumes_do(edit: Edit) -> None:
    store, world = await recorded(), World()
    before = await state_of(store)

    checked = await check_runs(service_of(edit.made, store=store, world=world))

    assert world.done == []
    assert await state_of(store) == before
    runs = {info.run_id for info in await store.find()}
    rejected = {
        run_id
        for run_id in runs
        if await diverges_in_a_resume(edit.made, App(Checkpoints(store), World()), run_id)
    }
    assert (checked.runs, rejected_by(checked)) == (len(runs), rejected)
    assert bool(rejected) is bool(edit.was or edit.now)
    if rejected:
        assert any(map(edit_is_named(edit), checked.misfits)), str(checked)


def rejected_by(checked: Checked) -> set[str]:
    assert all(one.verdict == "diverging" for one in checked.misfits)
    return {run_id for one in checked.misfits for run_id in one.run_ids}


def edit_is_named(edit: Edit) -> Callable[[Misfit], bool]:
    def is_named(misfit: Misfit) -> bool:
        if not edit.was:
            return edit.now in misfit.reason
        return (misfit.recorded, misfit.reached) == (edit.was, (edit.now,) if edit.now else ())

    return is_named


# What a check cannot tell, and what is no matter of the code.


@step
def ordered(item: str) -> Do[App, Broken, str]:
    yield from quote(item)
    yield from pack(item)
    return (yield from charge("nobody", 1))


async def checked_after(made: AnyWorkflow, entries: int, changed: AnyWorkflow) -> Checked:
    """Check changed code against a run that has crashed after so many entries, which is not changed."""
    store = MemoryStore()
    await TestClock().run(made.start(None, run_id="r"), App(Checkpoints(store), World()))
    left = await cut(store, entries)
    before, world = await state_of(left), World()
    checked = await check_runs(service_of(changed, store=left, world=world))
    assert (world.done, await state_of(left)) == ([], before)
    return checked


@workflow(name="inner")
def inner(item: str) -> Do[App, Broken, str]:
    yield from quote(item)
    return (yield from pack(item))


@workflow(name="inner")
def inner_without_quote(item: str) -> Do[App, Broken, str]:
    return (yield from pack(item))


async def test_the_inside_of_a_call_in_progress_is_checked() -> None:
    # After the beginning of `pack`.
    made, changed = (
        made_of(lambda: inner.call("cap")),
        made_of(lambda: inner_without_quote.call("cap")),
    )

    assert (await checked_after(made, 5, made)).all_fit
    [misfit] = (await checked_after(made, 5, changed)).misfits

    assert (misfit.recorded, misfit.reached) == ("inner/quote", ("inner/pack",))


async def test_the_inside_of_another_step_in_progress_is_unverified() -> None:
    made = made_of(lambda: ordered("cap"))

    [misfit] = (await checked_after(made, 5, made)).misfits

    assert (misfit.verdict, misfit.run_ids) == ("unverified", ["r"])
    assert "'ordered/quote': it is within a step that is in progress" in misfit.reason


async def test_what_comes_after_async_code_is_unverified_without_effects() -> None:
    made = made_of(lambda: in_turn(act("a"), from_async(_look), sleep(60), act("b")))
    changed = made_of(lambda: in_turn(act("a"), from_async(_look), act("b")))

    [misfit] = (await checked_after(made, 4, changed)).misfits
    assert (misfit.verdict, misfit.reason[:7]) == ("unverified", "'sleep'")


async def _look(_: object) -> None:
    pass


@step(at_most_once=True)
def pay_once() -> Effect[App, Broken, str]:
    return note("pay").map(lambda _: "paid")


async def test_an_unknown_outcome_and_a_child_in_another_store_do_not_concern_the_code() -> None:
    made = made_of(lambda: par(pay_once(), act("b")))
    changed = made_of(lambda: par(pay_once(), act("c")))

    assert (await checked_after(made, 3, made)).all_fit
    [misfit] = (await checked_after(made, 3, changed)).misfits

    assert (misfit.recorded, misfit.reached) == ("par[]/b", ("par[]/c", "par[]/pay_once"))


async def test_a_parent_is_checked_without_its_child(tmp_path: Path) -> None:
    store = MemoryStore()

    @workflow
    def parent(item: str) -> Do[App, Broken, str]:
        child = yield from spawn(inner, item)
        return (yield from child.result())

    async with Worker(service_of(parent, store=store), suspend_after=0) as worker:
        await worker.client.submit(parent, "cap", run_id="r")
        await worker.idle()
    (tmp_path / "r.jsonl").write_bytes(b"".join(write_exported(await export_run(store, "r"))))

    checked = await check_runs(service_of(parent, inner, store=MemoryStore()), journals=tmp_path)

    assert (checked.runs, checked.misfits) == (1, [])


async def test_a_damaged_run_is_unverified() -> None:
    store = await recorded()
    run = await export_run(store, "after 1")
    await store.delete("after 1")
    await import_run(store, replace(run, bodies=(b"{}", *run.bodies[1:])))

    checked = await check_runs(service_of(checkout, store=store))

    [misfit] = checked.misfits
    assert (misfit.verdict, misfit.run_ids) == ("unverified", ["after 1"])
    assert checked.runs == 21
