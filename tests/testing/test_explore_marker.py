"""The marker explore, in test files of a user."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


ACCOUNTS = '''
from dataclasses import dataclass
from pathlib import Path

import pytest

from effectflow import Checkpoints, Do, ask, do, par, sleep, step, workflow


@dataclass
class Account:
    checkpoints: Checkpoints
    balance: int = 0


@step
async def read() -> int:
    return (await ask(Account)).balance


@step
async def write(balance: int) -> None:
    (await ask(Account)).balance = balance


@do
async def pay_in(amount: int) -> None:
    await write(await read() + amount)


@workflow
async def pay_in_twice(amount: int) -> None:
    """Loses a payment if both branches read before one of them writes."""
    await par(pay_in(amount), pay_in(amount))


@workflow
async def pay_in_one_by_one(amount: int) -> None:
    await pay_in(amount)
    await pay_in(amount)


@pytest.fixture
def account(checkpoints):
    with Path("worlds").open("a") as worlds:
        print("one", file=worlds)
    return Account(checkpoints)
'''

RACE = """
@pytest.mark.explore(seeds=20)
{marks}
{definition} test_nothing_is_lost(account):
    {run}
    assert account.balance == 20
"""
RUN_ASYNC = 'await pay_in_twice.start(10, run_id="r").run_or_raise(account)'
RUN_SYNC = 'pay_in_twice.start(10, run_id="r").run_sync(account).unwrap()'


def run_tests(pytester: pytest.Pytester, tests: str) -> pytest.RunResult:
    """Run these tests of the account in a session of their own."""
    pytester.makeini(
        """
        [pytest]
        addopts = --strict-markers
        asyncio_default_fixture_loop_scope = function
        filterwarnings = error
        """
    )
    pytester.makepyfile(ACCOUNTS + tests)
    return pytester.runpytest()


def worlds(pytester: pytest.Pytester) -> int:
    return len((pytester.path / "worlds").read_text().splitlines())


@pytest.mark.parametrize(
    ("marks", "definition", "run", "tests"),
    [
        ("", "def", RUN_SYNC, 1),
        ("@pytest.mark.anyio", "async def", RUN_ASYNC, 2),
        ("@pytest.mark.asyncio", "async def", RUN_ASYNC, 1),
    ],
    ids=["plain", "anyio", "pytest-asyncio"],
)
def test_a_race_is_found_and_the_shortest_order_is_printed(
    pytester: pytest.Pytester, marks: str, definition: str, run: str, tests: int
) -> None:
    ran = run_tests(pytester, RACE.format(marks=marks, definition=definition, run=run))

    ran.assert_outcomes(failed=tests)
    ran.stdout.fnmatch_lines(
        [
            "E*assert 10 == 20",
            "E*explore: seed 0 has found this order of arrivals:",
            "E*  1. step 'par[[]0[]]/read' begins",
            "E*> 2. step 'par[[]1[]]/read' begins, before step 'par[[]0[]]/write' begins",
            "E*  3. step 'par[[]1[]]/write' begins",
            "E*  4. step 'par[[]0[]]/write' begins",
        ]
    )


def test_a_correct_test_runs_once_for_each_seed_and_counts_as_one(
    pytester: pytest.Pytester,
) -> None:
    correct = """
@pytest.mark.explore(seeds={seeds})
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_time_is_virtual(account, test_clock):
    ended = await test_clock.run(twice_later.start(10, run_id="r"), account)
    ended.unwrap()
    assert account.balance == 30

@do
async def later(seconds: float) -> None:
    await sleep(seconds)
    await pay_in(10)

@workflow
async def twice_later(amount: int) -> None:
    await par(later(3600), later(7200), pay_in(10))
"""
    run_tests(pytester, correct.format(seeds=5)).assert_outcomes(passed=2)
    assert worlds(pytester) == 10
    run_tests(pytester, correct.format(seeds=[7])).assert_outcomes(passed=2)
    assert worlds(pytester) == 12


def test_an_expected_failure_in_some_order_is_one(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        RACE.format(marks="@pytest.mark.xfail(strict=True)", definition="def", run=RUN_SYNC),
    )
    ran.assert_outcomes(xfailed=1)


def test_a_skipped_test_is_not_repeated(pytester: pytest.Pytester) -> None:
    ran = run_tests(pytester, RACE.format(marks="", definition="def", run="pytest.skip('no')"))
    ran.assert_outcomes(skipped=1)
    assert worlds(pytester) == 1


@pytest.mark.parametrize(
    ("marks", "run", "problem"),
    [
        ("explore", "pass", "no run of the test has branches, so it has one order"),
        (
            "explore",
            "pay_in_one_by_one.start(10, run_id='r').run_sync(account).unwrap()",
            "no run of the test has branches, so it has one order",
        ),
        (
            "explore(20)",
            "pass",
            "the marker takes only seeds, such as explore(seeds=20), not (20,)",
        ),
        ("explore(seeds=0)", "pass", "needs at least one seed, such as seeds=range(20)"),
        ("explore(seeds='x')", "pass", "are integers, such as range(20), not 'x'"),
        (
            "crash_everywhere\n@pytest.mark.explore",
            "pass",
            "a test can be crashed or explored, not both: remove one of the markers",
        ),
    ],
)
def test_a_marker_that_makes_no_sense_fails_the_test(
    pytester: pytest.Pytester, marks: str, run: str, problem: str
) -> None:
    ran = run_tests(
        pytester,
        f"""
@pytest.mark.{marks}
def test_it(account):
    {run}
""",
    )
    ran.assert_outcomes(failed=1)
    assert problem in ran.stdout.str()
