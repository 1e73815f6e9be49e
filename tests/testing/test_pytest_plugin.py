"""The fixtures and the marker, in test files of a user."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.pages import ROOT, examples

pytest_plugins = ["pytester"]


PAYING = '''
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from effectflow import Checkpoints, Do, Effect, step, workflow
from effectflow.effects import from_fn


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    bank: list[int]


@step
def charge(amount: int) -> Effect[App, str, int]:
    return from_fn(lambda app: app.bank.append(amount) or amount)


@workflow
def pay(count: int) -> Do[App, str, int]:
    total = 0
    for amount in range(count):
        total += yield from charge(amount)
    return total


@pytest.fixture
def bank(request):
    """The world of a test, which writes down how often there was one."""
    with Path("worlds").open("a") as worlds:
        print(request.node.name, file=worlds)
    return []


@pytest.fixture(scope="module")
def country():
    with Path("countries").open("a") as countries:
        print("begins", file=countries, flush=True)
        yield
        print("ends", file=countries)
'''
APPENDS = 5
"""Of `pay` with three charges: the run, the beginning of each, and the last end with that of the run."""

POINTS = 2 * APPENDS


def run_tests(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    """Run these tests of `pay` in a session of their own."""
    pytester.makeini(
        """
        [pytest]
        addopts = --strict-markers
        asyncio_default_fixture_loop_scope = function
        filterwarnings = error
        """
    )
    pytester.makepyfile(PAYING + tests)
    return pytester.runpytest(*options)


def lines_of(pytester: pytest.Pytester, file: str) -> list[str]:
    return (pytester.path / file).read_text().splitlines()


CORRECT = """
@pytest.mark.crash_everywhere
{marks}
{definition} test_pay(checkpoints, bank):
    assert {run} == 3
    # What was cut off is charged again; what was completed never is.
    assert sorted(set(bank)) == [0, 1, 2]
    assert len(bank) <= 4
"""
RUN_ASYNC = 'await pay.start(3, run_id="r").run_or_raise(App(checkpoints, bank))'
RUN_SYNC = 'pay.start(3, run_id="r").run_sync(App(checkpoints, bank)).unwrap()'


@pytest.mark.parametrize(
    ("marks", "definition", "run", "tests"),
    [
        ("", "def", RUN_SYNC, 1),
        ("@pytest.mark.anyio", "async def", RUN_ASYNC, 2),
        ("@pytest.mark.asyncio", "async def", RUN_ASYNC, 1),
    ],
    ids=["plain", "anyio", "pytest-asyncio"],
)
def test_a_test_is_crashed_at_every_append_and_counts_as_one(
    pytester: pytest.Pytester, marks: str, definition: str, run: str, tests: int
) -> None:
    ran = run_tests(pytester, CORRECT.format(marks=marks, definition=definition, run=run))

    ran.assert_outcomes(passed=tests)
    # One world for the whole run, and one for each crash with the life that follows it.
    assert len(lines_of(pytester, "worlds")) == tests * (1 + POINTS)


def test_the_crash_after_which_it_fails_is_named(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
@pytest.mark.crash_everywhere
def test_pay(checkpoints, bank):
    print("charged so far:", bank)
    pay.start(3, run_id="r").run_sync(App(checkpoints, bank))
    assert bank == [0, 1, 2]
""",
    )

    ran.assert_outcomes(failed=1)
    # The first step ran, and its end was not yet durable.
    ran.stdout.fnmatch_lines(["E*assert [[]0, 0, 1, 2[]] == [[]0, 1, 2[]]"])
    ran.stdout.fnmatch_lines(["E*crashed before append 3, and started again"])
    output = ran.stdout.str()
    assert output.count("charged so far: []") == 1
    assert output.count("charged so far: [0]") == 1


def test_what_is_wrong_without_a_crash_is_told_without_one(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
@pytest.mark.crash_everywhere
def test_pay(checkpoints, bank):
    assert pay.start(3, run_id="r").run_sync(App(checkpoints, bank)).unwrap() == 4
""",
    )

    ran.assert_outcomes(failed=1)
    assert "crashed" not in ran.stdout.str()
    assert len(lines_of(pytester, "worlds")) == 1


def test_fixtures_of_wider_scope_are_kept_until_the_last_test_that_needs_them(
    pytester: pytest.Pytester,
) -> None:
    ran = run_tests(
        pytester,
        """
@pytest.mark.crash_everywhere
@pytest.mark.parametrize("count", [1, 2])
def test_pay(country, checkpoints, bank, count):
    assert Path("countries").read_text() == "begins\\n"
    assert pay.start(count, run_id="r").run_sync(App(checkpoints, bank)).unwrap() == count - 1
""",
    )

    ran.assert_outcomes(passed=2)
    assert lines_of(pytester, "countries") == ["begins", "ends"]


def test_a_fixture_that_fails_in_the_end_is_an_error(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
@pytest.fixture(scope="session")
def sea():
    yield
    raise OSError("the sea is dry")

@pytest.mark.crash_everywhere
def test_pay(sea, checkpoints, bank):
    pay.start(3, run_id="r").run_sync(App(checkpoints, bank))
""",
    )

    ran.assert_outcomes(passed=1, errors=1)
    ran.stdout.fnmatch_lines(["E*the sea is dry"])


def test_a_run_that_the_next_life_does_not_take_up_is_a_mistake_of_the_test(
    pytester: pytest.Pytester,
) -> None:
    ran = run_tests(
        pytester,
        """
@pytest.mark.crash_everywhere
def test_pay(checkpoints, bank):
    pay.start(3).run_sync(App(checkpoints, bank))
""",
    )

    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*crashed before append 1, and run 'pay-*' was not continued*"])


def test_a_complete_nested_run_need_not_be_taken_up(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
@workflow
def pay_twice(count: int) -> Do[App, str, int]:
    first = yield from pay.call(count)
    return first + (yield from charge(5))

@pytest.mark.crash_everywhere
def test_pay(checkpoints, bank):
    app = App(checkpoints, bank)
    assert pay_twice.start(2, run_id="r").run_sync(app).unwrap() == 6
""",
    )

    ran.assert_outcomes(passed=1)


def test_so_is_a_test_without_a_run(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
@pytest.mark.crash_everywhere
def test_nothing():
    pass
""",
    )

    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*starts no run with the fixture `checkpoints`*"])


def test_other_marks_are_not_affected(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
@pytest.mark.crash_everywhere
@pytest.mark.skip
def test_skipped(checkpoints, bank):
    pass

@pytest.mark.crash_everywhere
@pytest.mark.xfail(strict=True, reason="charges twice")
def test_too_strict(checkpoints, bank):
    pay.start(3, run_id="r").run_sync(App(checkpoints, bank))
    assert bank == [0, 1, 2]
""",
    )

    ran.assert_outcomes(skipped=1, xfailed=1)


def test_the_fixtures_are_new_for_each_test(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
from effectflow import sleep

@pytest.mark.parametrize("again", [False, True])
@pytest.mark.anyio
async def test_both(checkpoints, test_clock, again):
    assert await checkpoints.store.find() == []
    await pay.start(1, run_id="r").run_or_raise(App(checkpoints, []))
    assert test_clock.monotonic() == 0
    await test_clock.run(sleep(3600), None)
    assert test_clock.monotonic() == 3600
""",
    )

    ran.assert_outcomes(passed=4)


AT = """
from effectflow.testing import after, before

@pytest.mark.crash_everywhere(at=[{at}])
@pytest.mark.{mode}
async def test_pay(checkpoints, bank):
    await pay.start(3, run_id="r").run_or_raise(App(checkpoints, bank))
    assert len(bank) <= 3
"""


@pytest.mark.parametrize("mode", ["anyio", "asyncio"])
def test_the_marker_takes_steps(pytester: pytest.Pytester, mode: str) -> None:
    ran = run_tests(pytester, AT.format(at="before('charge#2')", mode=mode))

    ran.assert_outcomes(failed=2 if mode == "anyio" else 1)
    crash = "before the beginning of step 'charge#2' of run 'r' was saved, and started again"
    ran.stdout.fnmatch_lines([f"E*crashed {crash}"])


def test_the_marker_rejects_unknown_steps(pytester: pytest.Pytester) -> None:
    ran = run_tests(pytester, AT.format(at="after('chrage')", mode="asyncio"))

    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["crash_everywhere: *'chrage'*: 'charge', 'charge#2', 'charge#3'"])


def test_the_marker_explains_itself(pytester: pytest.Pytester) -> None:
    ran = run_tests(pytester, "", "--markers")

    ran.stdout.fnmatch_lines(["@pytest.mark.crash_everywhere(at=None): *"])


def test_the_tests_of_the_page_pass(pytester: pytest.Pytester) -> None:
    page = "\n".join(examples(ROOT / "docs" / "testing.md"))
    # The conformance of the store on the page needs no more than one of its checks.
    names = "not test_counting_changes_nothing or whole_appends"
    ran = run_tests(pytester, page.replace("from __future__ import annotations", ""), "-k", names)

    outcomes = ran.parseoutcomes()
    assert set(outcomes) == {"passed", "deselected"}, ran.stdout.str()
    assert outcomes["passed"] >= page.count("def test_") > 2


def test_it_brings_in_no_optional_package_and_no_event_loop() -> None:
    """It is loaded whenever pytest is, for any tests."""
    code = "import sys, effectflow.testing.pytest_plugin; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    unwanted = {"asyncio", "trio", "hypothesis", "psycopg", "redis", "filelock", "rich", "typer"}

    assert "effectflow.testing" in loaded
    assert unwanted.isdisjoint(loaded)
