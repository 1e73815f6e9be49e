"""The check of the pytest plugin for steps that change their arguments, in test files of a user."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SHOP = """
from dataclasses import dataclass, field
from typing import Any

import pytest

from effectflow import *
from effectflow.effects import *
from effectflow.stores import MemoryStore


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints(MemoryStore()))
    charged: list[int] = field(default_factory=list)


class Declined(Exception):
    pass


@step
def charge(amount: int) -> Effect[App, Declined, int]:
    return from_fn(lambda app: app.charged.append(amount) or amount)


@step
def decline(amount: int) -> Effect[App, Declined, int]:
    return fail(Declined())


@workflow
def pay(amount: int) -> Do[App, Declined, int]:
    return (yield from charge(amount))
"""


def run_tests(
    pytester: pytest.Pytester, tests: str, *, is_checked: bool = True
) -> pytest.RunResult:
    """Run these tests of the shop in a session of their own."""
    pytester.makeini(
        f"""
        [pytest]
        addopts = --strict-markers -p no:cacheprovider
        asyncio_default_fixture_loop_scope = function
        filterwarnings = error
        {"effectflow_changed_arguments = true" if is_checked else ""}
        """
    )
    pytester.makepyfile(SHOP + tests)
    return pytester.runpytest()


ORDERS = """
@dataclass
class Order:
    total: int
    paid: list[str] = field(default_factory=list)

@step
def discount(order: Order, by: int) -> Do[App, Declined, int]:
    order.total -= by
    return (yield from pure(order.total))

@workflow
def sell(total: int) -> Do[App, Declined, int]:
    order = Order(total)
    yield from discount(order, 2)
    return order.total
"""


def test_a_step_that_changes_its_argument_fails_the_test(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        ORDERS
        + """
@pytest.mark.anyio
async def test_run(checkpoints):
    assert await sell.start(7, run_id="r").run_or_raise(App(checkpoints)) == 5

def test_outside():
    assert discount(Order(7), by=2).run_sync(App()).unwrap() == 5
""",
    )

    ran.assert_outcomes(failed=3)
    problem = "effectflow: step 'discount' of run 'r', attempt 1, changed its arguments "
    values = "from (by=2, order=Order(total=7)) to (by=2, order=Order(total=5))"
    ran.stdout.fnmatch_lines([problem + values])
    ran.stdout.fnmatch_lines(["effectflow: step 'discount' changed its arguments from (*"])


JOB = """
def collect(names: list[str]) -> Effect[App, Declined, int | None]:
    names.append("x")
    return from_fn(lambda _: names.append("y")) if len(names) < 3 else pure(len(names))

def job(**options):
    return MapReduce(
        "job",
        items=lambda _: [[]],
        map=collect,
        reduce=lambda values: pure(len(values)),
        key=str,
        limit=1,
        **options,
    )
"""


@pytest.mark.parametrize(
    "run",
    [
        "job().start(1, run_id='r')",
        "job(retry=RetryPolicy.constant(0).with_max_retries(1)).start(1, run_id='r')",
        "job(executor=LocalExecutor()).start(1, run_id='r')",
        "job().body(1)",
    ],
)
def test_a_function_of_a_job_that_changes_its_item_is_found(
    pytester: pytest.Pytester, run: str
) -> None:
    ran = run_tests(
        pytester,
        f"""
from effectflow.executors import LocalExecutor
from effectflow.mapreduce import MapReduce
{JOB}

def test_it():
    {run}.run_sync(App()).unwrap()
""",
    )

    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["effectflow: step '*collect*changed its arguments from (item=[[]]) to (item=[[]'x', 'y'])"]
    )


@pytest.mark.parametrize(
    ("run", "found"),
    [
        ("cut.call(order)", 1),
        ("sleep(0)", 0),
        # The input of an outer run is recorded, so every life begins with the same.
        ("from_async(lambda app: cut.start(order).run(App()))", 0),
    ],
)
def test_a_workflow_that_changes_its_input_is_found_if_it_is_called(
    pytester: pytest.Pytester, run: str, found: int
) -> None:
    ran = run_tests(
        pytester,
        f"""
@workflow
def cut(order: dict[str, int]) -> Do[App, Declined, int]:
    order["total"] -= 2
    return (yield from pure(1))

@workflow
def selling(total: int) -> Do[App, Any, int]:
    order = {{"total": total}}
    yield from {run}
    return order["total"]

def test_it():
    assert selling.start(7, run_id="r").run_sync(App()).unwrap() < 8
""",
    )

    ran.assert_outcomes(failed=found, passed=1 - found)
    if found:
        what = "step 'cut' of run 'r', attempt 1, changed its arguments"
        values = "from (input={'total': 7}) to (input={'total': 5})"
        ran.stdout.fnmatch_lines([f"effectflow: {what} {values}"])


@pytest.mark.parametrize("run", ["", ".checkpointed('x')", ".result()"])
def test_an_attempt_that_fails_and_changes_its_argument_is_found(
    pytester: pytest.Pytester, run: str
) -> None:
    ran = run_tests(
        pytester,
        f"""
@step(retry=RetryPolicy.constant(0).with_max_retries(2))
def collect(names: list[str]) -> Effect[App, Declined, int]:
    names.append("attempt")
    return fail(Declined()) if len(names) < 3 else pure(len(names))

@workflow
def collecting(_: int) -> Do[App, Declined, int]:
    return (yield from collect([]))

def test_it():
    assert collecting.start(1, run_id="r"){run}.run_sync(App())
""",
    )

    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "effectflow: step 'collect*attempt 1, changed its arguments from (names=[[]]) *",
            "effectflow: step 'collect*attempt 2, changed its arguments *",
            "effectflow: step 'collect*attempt 3, changed its arguments *",
        ]
    )


def test_a_test_that_fails_notes_what_its_steps_changed(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        ORDERS
        + """
def test_it():
    assert sell.start(7).run_sync(App()).unwrap() == 7
""",
    )

    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["E*assert 5 == 7", "E*effectflow: step 'discount' of run 'sell-*changed its arguments*"]
    )


def test_an_argument_that_cannot_be_encoded_any_more_has_changed(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
@step
def spoil(parts: list[object]) -> Effect[App, Declined, None]:
    return from_fn(lambda app: parts.append(app))

def test_it():
    spoil([]).run_sync(App())
""",
    )

    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["effectflow: step 'spoil' changed its arguments: * encoded any more"])


def test_steps_that_leave_their_arguments_alone_pass(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        ORDERS
        + """
@step
def copied(order: Order) -> Effect[App, Declined, Order]:
    return pure(Order(order.total - 2))

@step
def unencodable(app: App, order: Order) -> Effect[App, Declined, None]:
    order.total -= 2
    return pure(None)

def test_it():
    assert copied(Order(7)).run_sync(App()).unwrap() == Order(5)
    assert unencodable(App(), Order(7)).run_sync(App())
""",
    )

    ran.assert_outcomes(passed=1)


def test_nothing_is_checked_unless_asked_for(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        ORDERS
        + """
def test_it():
    assert sell.start(7).run_sync(App()).unwrap() == 5
""",
        is_checked=False,
    )

    ran.assert_outcomes(passed=1)


def test_nothing_is_left_of_the_check_after_a_test(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
from effectflow.builders.mapreduce import _job
from effectflow.checkpoint.step import StepDefinition
from effectflow.checkpoint.step_execution import StepExecution

def functions():
    return [
        StepExecution.execute, StepDefinition.execute_plainly, _job.ItemWork.mapped, _job.durable
    ]

BEFORE = functions()

@pytest.fixture(autouse=True)
def before_and_after():
    assert functions() == BEFORE
    yield
    assert functions() == BEFORE

def test_it():
    assert not set(functions()) & set(BEFORE)
""",
    )

    ran.assert_outcomes(passed=1)
