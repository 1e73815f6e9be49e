"""explore: races are found, a seed means the same order each time, and the order shown is short."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Never

import anyio
import pytest
from returns.result import Result, Success

from effectflow import (
    Checkpoints,
    Client,
    Do,
    Effect,
    RetryPolicy,
    Signal,
    TimedOut,
    Workflow,
    ask,
    do,
    effect,
    fail,
    from_blocking,
    par,
    par_all,
    par_traverse,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import CheckpointStore, find_run
from effectflow.effects import from_fn
from effectflow.stores import MemoryStore
from effectflow.testing import ExplorationFailed, explore
from tests.apps import both_backends

pytestmark = [pytest.mark.anyio, both_backends]


@dataclass
class App:
    checkpoints: Checkpoints
    balance: int = 0
    done: list[str] = field(default_factory=list[str])


def app_on(store: CheckpointStore) -> App:
    return App(Checkpoints(store))


@step
def read() -> Effect[App, Never, int]:
    return from_fn(lambda app: app.balance)


@step
def write(balance: int) -> Effect[App, Never, None]:
    return from_fn(lambda app: setattr(app, "balance", balance))


@step
def add(amount: int) -> Effect[App, Never, int]:
    def add_to(app: App) -> int:
        app.balance += amount
        return app.balance

    return from_fn(add_to)


@do
def pay_in(amount: int) -> Do[App, Never, None]:
    balance = yield from read()
    yield from write(balance + amount)


@workflow
def losing(amount: int) -> Do[App, Never, int]:
    yield from par(pay_in(amount), pay_in(amount))
    return (yield from read())


@workflow
def correct(amount: int) -> Do[App, Never, int]:
    yield from par(add(amount), add(amount))
    return (yield from read())


async def failure_of(
    workflow: Workflow[Any, Any, Any, Any], input: object = 10, **options: Any
) -> ExplorationFailed:
    with pytest.raises(ExplorationFailed) as caught:
        await explore(workflow, input, options.pop("environment", app_on), **options)
    return caught.value


async def test_every_order_has_an_environment_that_is_open_until_it_was_checked() -> None:
    is_open = [False]

    @asynccontextmanager
    async def environment(store: CheckpointStore) -> AsyncGenerator[App]:
        is_open[0] = True
        yield App(Checkpoints(store))
        is_open[0] = False

    def check(_result: object, _app: App) -> None:
        assert is_open == [True]

    assert await explore(correct, 10, environment, seeds=range(3), check=check) > 1
    assert is_open == [False]


# Races.


async def test_a_lost_update_is_found_and_its_shortest_order_is_shown() -> None:
    failed = await failure_of(losing)

    assert str(failed).splitlines() == [
        "seed 0: <Success: 10> instead of <Success: 20>",
        "  1. step 'par[0]/read' begins",
        "> 2. step 'par[1]/read' begins, before step 'par[0]/write' begins",
        "  3. step 'par[1]/write' begins",
        "  4. step 'par[0]/write' begins",
    ]
    assert (failed.seed, failed.result) == (0, Success(10))
    assert failed.order[2:] == ("step 'par[1]/write' begins", "step 'par[0]/write' begins")


async def test_the_corrected_workflow_passes() -> None:
    assert await explore(correct, 10, app_on) == 2


def never_loses(result: Result[int, Any], app: App) -> None:
    assert result.unwrap() == app.balance
    assert app.balance == 20


async def test_a_check_decides_instead_of_the_result_of_the_first_order() -> None:
    async def accepts(result: Result[int, Any], app: App) -> None:
        assert await find_run(app.checkpoints.store, "explore")
        assert result.unwrap() in (10, 20)

    assert await explore(losing, 10, app_on, check=accepts) > 2
    failed = await failure_of(losing, check=never_loses)
    assert isinstance(failed.__cause__, AssertionError)
    assert "10 == 20" in str(failed)


@workflow
async def losing_async(amount: int) -> int:
    async def pay() -> None:
        balance = await read()
        await anyio.lowlevel.checkpoint()
        await write(balance + amount)

    await par(do(pay)(), do(pay)())
    return await read()


async def test_coroutines_as_bodies_are_explored() -> None:
    failed = await failure_of(losing_async)
    assert failed.result == Success(10)
    assert sum(", before " in taken for taken in failed.order) == 1


@step
@effect
async def inquire(app: App, name: str) -> str:
    app.done.append(f"{name} asks")
    await anyio.lowlevel.checkpoint()
    app.done.append(f"{name} knows")
    return name


@workflow
def first_of_two(_: int) -> Do[App, Never, str]:
    return (yield from race(inquire("a"), inquire("b")))


async def test_the_winner_of_a_race_depends_on_the_order() -> None:
    failed = await failure_of(first_of_two)
    assert failed.result == Success("b")
    assert failed.order[:3] == (
        "step 'race[0]/inquire' begins",
        "step 'race[1]/inquire' begins, before step 'race[0]/inquire' goes on",
        "step 'race[1]/inquire' goes on",
    )


@step
async def pay_in_one_step(amount: int) -> None:
    """Loses updates because of what happens during its wait, within one step."""
    app = await ask(App)
    balance = app.balance
    await anyio.lowlevel.checkpoint()
    app.balance = balance + amount


@workflow
async def losing_within_steps(amount: int) -> int:
    await par(pay_in_one_step(amount), pay_in_one_step(amount))
    return await read()


async def test_the_async_code_of_steps_is_interleaved() -> None:
    failed = await failure_of(losing_within_steps)
    assert failed.result == Success(10)
    assert sum(", before " in taken for taken in failed.order) == 1


# Times.


@step
@do
def slow(seconds: float) -> Do[App, Never, str]:
    yield from sleep(seconds)
    return "in time"


@workflow
def limited(seconds: float) -> Do[App, TimedOut, str]:
    return (yield from slow(5).timeout(seconds))


async def test_a_timeout_and_a_step_that_are_due_at_the_same_time_race() -> None:
    failed = await failure_of(limited, 5.0)
    assert isinstance(failed.result.failure(), TimedOut)
    assert "> 2. timeout 'timeout' fires, before timer 'slow/sleep' fires" in str(failed)


async def test_what_is_due_at_another_time_keeps_its_place() -> None:
    assert await explore(limited, 6.0, app_on) == 1

    def fails(result: Result[str, Any], _: App) -> None:
        assert isinstance(result.failure(), TimedOut)

    assert await explore(limited, 4.0, app_on, check=fails) == 1


@step(retry=RetryPolicy.constant(1).with_max_retries(3))
def flaky(name: str) -> Effect[App, str, str]:
    def attempt(app: App) -> Effect[App, str, str]:
        app.done.append(name)
        return fail("busy") if app.done.count(name) < 3 else from_fn(lambda _: name)

    return from_fn(attempt).and_then(lambda made: made)


@workflow
def with_back_off(_: int) -> Do[App, str, tuple[str, str]]:
    return (yield from par(flaky("a"), slow(1.5)))


async def test_back_offs_keep_their_order_by_time() -> None:
    worlds: list[App] = []

    def environment(store: CheckpointStore) -> App:
        worlds.append(app_on(store))
        return worlds[-1]

    await explore(with_back_off, 0, environment)
    assert {tuple(app.done) for app in worlds} == {("a", "a", "a")}


decision = Signal("decision", str)


@step
async def send_later(seconds: float) -> None:
    await sleep(seconds)
    app = await ask(App)
    await Client(app.checkpoints).handle(decided, "explore").send(decision, "yes")


@workflow
def decided(seconds: float) -> Do[App, Never, str]:
    late = sleep(5).map(lambda _: "too late")
    return (yield from par(race(decision.wait(), late), send_later(seconds)))[0]


async def test_a_message_and_a_timer_race() -> None:
    failed = await failure_of(decided, 5.0)
    assert {failed.result, Success("yes"), Success("too late")} == {
        Success("yes"),
        Success("too late"),
    }
    assert await explore(decided, 4.0, app_on, check=ends_with("yes"))
    assert await explore(decided, 6.0, app_on, check=ends_with("too late"))


def ends_with(value: object) -> Callable[[Result[Any, Any], App], None]:
    def check(result: Result[Any, Any], _: App) -> None:
        assert result.unwrap() == value

    return check


# Branches.


@workflow
def traversal(items: list[str]) -> Do[App, Never, list[str]]:
    yield from par_traverse(items, inquire, limit=2)
    app = yield from ask(App)
    return [*app.done]


async def test_a_traversal_with_a_limit_is_explored_within_the_limit() -> None:
    def keeps_limit(result: Result[list[str], Any], app: App) -> None:
        running = 0
        for line in result.unwrap():
            running += 1 if line.endswith("asks") else -1
            assert running <= 2

    assert await explore(traversal, ["a", "b", "c", "d"], app_on, check=keeps_limit) > 10


@workflow
def sequence(_: int) -> Do[App, Never, int]:
    yield from pay_in(1)
    yield from sleep(3600)
    yield from pay_in(1)
    return (yield from read())


async def test_a_body_without_branches_has_one_order() -> None:
    assert await explore(sequence, 0, app_on, seeds=range(3)) == 1


# Repetition.


async def noted(workflow: Workflow[App, Any, Any, Any], input: Any) -> list[list[str]]:
    """Return what the steps did in each order."""
    worlds: list[App] = []

    def environment(store: CheckpointStore) -> App:
        worlds.append(app_on(store))
        return worlds[-1]

    await explore(workflow, input, environment, seeds=range(5), check=lambda *_: None)
    return [app.done for app in worlds]


async def test_a_seed_means_the_same_order_each_time_and_on_each_backend() -> None:
    found = await noted(traversal, ["a", "b", "c"])
    assert found == await noted(traversal, ["a", "b", "c"])
    assert len(set(map(tuple, found))) > 2
    assert found[0] == ["a asks", "a knows", "c asks", "c knows", "b asks", "b knows"]
    assert found[1] == ["b asks", "a asks", "a knows", "c asks", "b knows", "c knows"]


async def test_one_seed_repeats_an_order() -> None:
    failed = await failure_of(losing, seeds=range(3, 20))
    assert failed.seed is not None
    again = await failure_of(losing, seeds=[failed.seed])
    assert str(again) == str(failed)


# Other ways to end wrongly.


@workflow
def failing(_: int) -> Do[App, str, None]:
    yield from fail("no")


async def test_a_failure_in_the_first_order_needs_a_check() -> None:
    failed = await failure_of(failing)
    assert failed.seed is None
    assert str(failed).startswith(
        "in the first order: the run ends with <Failure: no>. If that is right, pass `check`"
    )
    assert await explore(failing, 0, app_on, check=lambda *_: None) == 1


@step
def divide() -> Effect[App, Never, float]:
    return from_fn(lambda app: 1 / app.balance)


@workflow
def dividing(_: int) -> Do[App, Never, None]:
    yield from par(add(1), divide())


async def test_a_defect_in_some_order_is_found() -> None:
    failed = await failure_of(dividing)
    assert "the run raises ZeroDivisionError" in str(failed)
    assert isinstance(failed.__cause__, ZeroDivisionError)
    assert failed.order[0] == "step 'par[1]/divide' begins, before step 'par[0]/add' begins"


@step
async def wait_for_the_balance() -> None:
    app = await ask(App)
    if not app.balance:
        await anyio.sleep_forever()


@workflow
def stuck(_: int) -> Do[App, Never, None]:
    yield from par(add(1), wait_for_the_balance())


async def test_a_run_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effectflow.testing.exploration._LONGEST", 0.2)
    failed = await failure_of(stuck)
    assert "the run does not end within 0.2 s of real time" in str(failed)
    assert failed.result is None


# Threads.


@step
def compute(name: str) -> Effect[App, Never, None]:
    return from_blocking(lambda app: app.done.append(name))


@workflow
def threads(_: int) -> Do[App, Never, None]:
    yield from par(compute("a"), compute("b"))


async def test_steps_may_use_threads() -> None:
    assert await explore(threads, 0, app_on, seeds=range(5))


# Wrong arguments.


async def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="explore takes a workflow"):
        await explore(read, 0, app_on)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"integers, such as range\(20\), not 7"):
        await explore(correct, 0, app_on, seeds=7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least one seed"):
        await explore(correct, 0, app_on, seeds=[])
    with pytest.raises(ValueError, match="must use the store that it receives in its checkpoints"):
        await explore(correct, 0, lambda _: app_on(MemoryStore()))


async def test_explorations_go_on_one_at_a_time() -> None:
    async def nested(_: Result[int, Any], __: App) -> None:
        await explore(correct, 10, app_on)

    await explore(correct, 10, app_on, check=nested, seeds=[0])
    with pytest.raises(RuntimeError, match="only one at a time"):
        await par_all([do(exploring)(), do(exploring)()]).run_or_raise(None)


async def exploring() -> None:
    await explore(correct, 10, app_on)


@step
async def pause_the_process() -> None:
    time.sleep(0.3)


@workflow
def paused(_: int) -> Do[App, Never, None]:
    yield from par(add(1), pause_the_process())


async def test_a_pause_of_the_whole_process_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effectflow.testing.exploration._LONGEST", 0.2)
    assert await explore(paused, 1, app_on, seeds=range(2)) > 0
