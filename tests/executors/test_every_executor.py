"""The promises of all executors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from functools import partial
from threading import Lock
from typing import Any, Never

import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryExhausted,
    RetryPolicy,
    ask,
    bracket,
    current_step,
    do,
    fail,
    par_all,
    par_traverse,
    pure,
    race,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import StepInfo, read_checkpoint, run_context
from effectflow.effects import asks, from_fn, traverse
from effectflow.executors import DaskExecutor, LocalExecutor, ProcessExecutor
from effectflow.machines import Moved, StateMachine, Transition, transition_info
from effectflow.stores import MemoryStore
from tests.apps import App
from tests.executors.conftest import AnyExecutor, interrupted, soon
from tests.executors.items import Folder, OutOfStock, asleep
from tests.executors.shop import (
    ExitsWhenUnpickled,
    Frozen,
    FrozenWithSlots,
    Leaving,
    Peculiar,
    Refused,
    Shop,
    Stubborn,
    explode,
    inner,
    make_shop,
    number_of_prices,
    price_of,
)
from tests.sweeps import BACKENDS

pytestmark = pytest.mark.anyio


SHOP = make_shop()


@pytest.fixture(scope="module", params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both backends, each with one executor of each kind for this whole file."""
    return str(request.param)


@pytest.fixture(scope="module", params=["local", "processes", "dask"])
async def executor(
    request: pytest.FixtureRequest, anyio_backend: str
) -> AsyncGenerator[AnyExecutor]:
    """An executor, for items that need a shop."""
    match request.param:
        case "local":
            made: AnyExecutor = LocalExecutor()
        case "processes":
            made = ProcessExecutor(make_shop, limit=2)
        case _:
            cluster = request.getfixturevalue("dask_cluster")
            made = DaskExecutor(cluster.scheduler_address, make_shop)
    async with made:
        yield made


elsewhere = pytest.mark.parametrize("executor", ["processes", "dask"], indirect=True)
"""For tests of executors whose items run in other processes."""


async def test_items_use_the_environment_of_the_executor(executor: AnyExecutor) -> None:
    prices = par_traverse(["cap", "scarf"] * 5, lambda item: executor.apply(price_of, item))

    assert await prices.run(SHOP) == Success([7, 9] * 5)


async def test_a_body_that_is_sent_by_value_fails_with_what_it_declares(
    executor: AnyExecutor,
) -> None:
    @do
    def ordering(item: str) -> Do[Shop, OutOfStock, int]:
        yield from pure(None)
        raise OutOfStock(item, 0)

    for ended in (executor.apply(ordering, "cap"), ordering("cap").on_executor(executor)):
        assert isinstance((await ended.run(SHOP)).failure(), OutOfStock)


async def test_an_effect_can_run_more_than_once(executor: AnyExecutor) -> None:
    price = executor.apply(price_of, "cap")

    assert await price.run(SHOP) == Success(7)
    assert await price.run(SHOP) == Success(7)


ERRORS = [
    "no",
    ("a", 1),
    OutOfStock("cap", left=2),
    Refused("late", codes=(1, 2)),
    RetryExhausted("no", attempts=3, elapsed=0.5),
    FileNotFoundError(2, "no such file", "cap.txt"),
]


async def test_failures_keep_their_classes_and_fields(executor: AnyExecutor) -> None:
    found = (await par_all([executor.apply(fail, e) for e in ERRORS]).run(None)).failure()

    for error, expected in zip(found, ERRORS, strict=True):
        assert type(error) is type(expected)
        assert str(error) == str(expected)
        for name in ("args", "item", "left", "reason", "codes", "attempts", "elapsed", "filename"):
            assert getattr(error, name, None) == getattr(expected, name, None)


async def test_a_failure_keeps_the_trail_of_its_contexts(executor: AnyExecutor) -> None:
    far = executor.apply(lambda item: price_of(item).context(f"pricing {item}"), "hat")
    failed = await far.context("checking out").traced().run(SHOP)

    assert failed.failure().trail == ("pricing hat", "checking out")


async def test_a_defect_is_raised_as_itself(executor: AnyExecutor) -> None:
    with pytest.raises(OutOfStock) as raised:
        await executor.apply(lambda item: from_fn(partial(explode, item)), "cap").run(None)

    assert (raised.value.item, raised.value.left) == ("cap", 0)


@elsewhere
async def test_a_defect_has_the_traceback_of_its_worker_as_a_note(executor: AnyExecutor) -> None:
    with pytest.raises(OutOfStock) as raised:
        await executor.apply(lambda item: from_fn(partial(explode, item)), "cap").run(None)

    (note,) = raised.value.__notes__
    assert "worker process" in note
    assert ", in explode\n" in note
    assert "/effectflow/effects/" not in note


async def test_a_function_that_raises_instead_of_returning_an_effect_is_a_defect(
    executor: AnyExecutor,
) -> None:
    with pytest.raises(ZeroDivisionError):
        await executor.apply(lambda n: pure(1 // n), 0).run(None)


async def test_an_interrupted_item_runs_its_finalizers_and_the_executor_stays_usable(
    executor: AnyExecutor, folder: Folder
) -> None:
    sleeper = executor.apply(lambda folder: asleep("cap").provide(folder), folder)

    await interrupted(sleeper, SHOP, folder.lines)
    assert await executor.apply(price_of, "cap").run(SHOP) == Success(7)
    await soon(lambda: folder.begun()["cap-ended"])


async def test_an_effect_with_most_kinds_of_nodes_can_be_sent(executor: AnyExecutor) -> None:

    def same(shop: Shop) -> Shop:
        return shop

    @do
    def body(item: str) -> Do[Shop, KeyError, int]:
        price = yield from price_of(item)
        doubled = yield from traverse([price], lambda n: pure(n * 2))
        return sum(doubled)

    resource = bracket(pure("r"), lambda _: pure(None), lambda _: body("cap"))
    checked = resource.ensure(lambda n: n > 0, "not positive").context("checking").named("check")
    retried = checked.retry(RetryPolicy.constant(0.001).with_max_retries(2)).map_err(str)
    rescued = price_of("hat").recover(KeyError, lambda _: pure(0)).or_else(lambda _: pure(-1))
    both = par_all([retried, rescued, race([asks(number_of_prices)])])
    whole = both.timeout(30).on_exit(pure(None)).tap(lambda _: pure(None)).result().local(same)

    assert await whole.on_executor(executor).run(SHOP) == Success(Success([14, 0, 2]))
    given = ask(Shop).provide(Shop({})).on_executor(executor)
    assert await given.run(SHOP) == Success(Shop({}))


async def test_the_current_step_is_known_where_the_step_runs(executor: AnyExecutor) -> None:
    key = executor.apply(lambda _: from_fn(lambda _: current_step()), None).checkpointed(
        "pay", output=StepInfo
    )

    @workflow
    def pay(_: None) -> Effect[Any, Any, StepInfo]:
        return key

    app = App(Checkpoints(MemoryStore()))
    info = await pay.start(None, run_id="monday").run_or_raise(app)

    assert info == StepInfo("monday", "pay", 1)
    assert info.idempotency_key == "monday:pay"


async def test_the_run_context_is_known_where_the_items_run(executor: AnyExecutor) -> None:
    def tenant(name: str) -> Effect[object, Never, str]:
        return run_context().map(lambda context: f"{name} of {context.get('tenant')}")

    @workflow
    def ask_twice(_: None) -> Do[Any, Any, tuple[str, str]]:
        between_steps = yield from executor.apply(tenant, "cap")
        in_step = yield from executor.apply(tenant, "scarf").checkpointed("ask")
        return between_steps, in_step

    app = App(Checkpoints(MemoryStore()))
    found = await ask_twice.start(None, context={"tenant": "acme"}).run(app)

    assert found == Success(("cap of acme", "scarf of acme"))
    assert await executor.apply(tenant, "hat").run(None) == Success("hat of None")


async def test_the_action_of_a_machine_may_use_an_executor(executor: AnyExecutor) -> None:
    def about(state: str) -> Effect[object, Never, str]:
        return transition_info().map(lambda info: f"{info.transition} from {state}")

    def ship(state: str) -> Effect[object, Any, Moved[str]]:
        return executor.apply(about, state).map(Moved)

    shipping = Transition("ship", "packed", {"ship from packed"}, ship)
    order = StateMachine(
        "order", initial="packed", transitions=[shipping], final="ship from packed"
    )

    app = App(Checkpoints(MemoryStore()))
    assert (await order.start(run_id="r").run_or_raise(app)).current == "ship from packed"
    assert (await order.run_until_final().run_or_raise(None)).current == "ship from packed"


@elsewhere
async def test_steps_inside_an_item_are_not_recorded(executor: AnyExecutor) -> None:
    app = App(Checkpoints(MemoryStore()))

    @workflow
    def outer(number: int) -> Effect[Any, Any, int]:
        return with_checkpointing(
            "outer", executor.apply(lambda n: with_checkpointing("inner", inner(n)), number)
        )

    assert await outer.start(1, run_id="r").run(app) == Success(2)

    checkpoint = await read_checkpoint(app.checkpoints.store, "r")
    assert [done.step for done in checkpoint.completed_steps] == ["outer"]


@elsewhere
async def test_the_defect_of_a_value_that_cannot_be_pickled_says_where_it_is(
    executor: AnyExecutor,
) -> None:
    lock = Lock()
    calls: dict[str, Effect[object, Any, Any]] = {
        "the item that a worker was to receive, <unlocked": executor.apply(pure, lock),
        "the function that a worker was to receive": executor.apply(
            lambda _: from_fn(lambda _: str(lock)), None
        ),
        "the value that a worker was to send back": executor.apply(
            lambda _: from_fn(lambda _: Lock()), None
        ),
        "the error that a worker was to send back": executor.apply(lambda _: fail(Lock()), None),
    }
    for place, call in calls.items():
        with pytest.raises(TypeError, match=f"lock.*That is in {place}"):
            await call.run(None)
    assert await executor.apply(pure, "still there").run(None) == Success("still there")


@elsewhere
async def test_a_value_that_cannot_be_unpickled_is_a_defect_that_names_its_class(
    executor: AnyExecutor,
) -> None:
    with pytest.raises(TypeError, match=r"number.*Peculiar'>: it cannot be pickled and unpickled"):
        await executor.apply(lambda n: from_fn(lambda _: Peculiar(n)), 1).run(None)


@elsewhere
async def test_an_exception_that_cannot_be_unpickled_is_replaced_by_its_text(
    executor: AnyExecutor,
) -> None:
    def raising(_: object) -> Never:
        raise Stubborn("bug")

    with pytest.raises(RuntimeError, match="Stubborn: bug") as raised:
        await executor.apply(lambda _: from_fn(raising), None).run(None)
    with pytest.raises(ValueError, match="no number") as failed:
        await executor.apply(lambda _: fail(Stubborn("no")), None).run(None)

    assert "in raising\n" in raised.value.__notes__[0]
    assert "it cannot be pickled and unpickled" in failed.value.__notes__[0]


@elsewhere
@pytest.mark.parametrize("kind", [Frozen, FrozenWithSlots])
async def test_a_frozen_defect_is_raised_as_itself(
    executor: AnyExecutor, kind: type[Frozen | FrozenWithSlots]
) -> None:
    def refuse(reason: str, _: object) -> Never:
        raise kind(reason)

    with pytest.raises(kind) as raised:
        await executor.apply(lambda reason: from_fn(partial(refuse, reason)), "late").run(None)

    assert raised.value.reason == "late"


@elsewhere
@pytest.mark.parametrize(
    ("leaving", "message"),
    [
        (SystemExit(3), r"raised SystemExit\(3\)"),
        (Leaving("enough"), r"the item raised Leaving\('enough'\)"),
        (GeneratorExit("done"), r"the item raised GeneratorExit\('done'\)"),
        (asyncio.CancelledError("done"), "raised CancelledError, though nothing has cancelled it"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, BaseException) else "",
)
async def test_an_item_that_exits_or_cancels_itself_is_a_defect(
    executor: AnyExecutor, leaving: BaseException, message: str
) -> None:
    def leave(_: object) -> Never:
        raise leaving

    with pytest.raises(RuntimeError, match=message) as raised:
        await executor.apply(lambda _: from_fn(leave), None).run(None)
    assert "in leave\n" in raised.value.__notes__[0]
    assert await executor.apply(pure, "still there").run(None) == Success("still there")


@elsewhere
async def test_a_module_that_exits_is_a_defect(executor: AnyExecutor) -> None:
    with pytest.raises(RuntimeError, match=r"raised SystemExit\(3\)"):
        await executor.apply(pure, ExitsWhenUnpickled()).run(None)


@elsewhere
async def test_a_class_sent_by_value_comes_back_as_the_same_class(executor: AnyExecutor) -> None:
    class Local:
        def __init__(self, number: int) -> None:
            self.number = number

        def more(self) -> int:
            return self.number + 1

    more = Local.more
    for number in range(2):
        back = (await executor.apply(pure, Local(number)).run(None)).unwrap()
        assert type(back) is Local
        assert back.more() == number + 1
    assert Local.more is more


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("ProcessExecutor", "cloudpickle", "processes"), ("DaskExecutor", "distributed", "dask")],
)
def test_the_error_for_a_missing_package_says_what_to_install(
    name: str, package: str, extra: str
) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; from effectflow.executors import {name}"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert f"needs the package {package}: pip install 'effectflow[{extra}]'" in ran.stderr
