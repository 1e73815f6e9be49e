"""The checks of the pytest plugin, in test files of a user."""

from __future__ import annotations

import sys

import pytest

pytest_plugins = ["pytester"]

# The sessions within these tests are checked, not the tests themselves.
pytestmark = pytest.mark.allow_unused_effects

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
    pytester: pytest.Pytester, tests: str, *, ini: str = "", in_process: bool = True
) -> pytest.RunResult:
    """Run these tests of the shop in a session of their own."""
    pytester.makeini(
        f"""
        [pytest]
        addopts = --strict-markers -p no:cacheprovider
        asyncio_default_fixture_loop_scope = function
        filterwarnings = error
        {ini}
        """
    )
    pytester.makepyfile(SHOP + tests)
    return pytester.runpytest() if in_process else pytester.runpytest_subprocess()


def place_of(pytester: pytest.Pytester, code: str) -> tuple[str, int]:
    """Return the name of the file of tests, and the line with this code."""
    [file] = pytester.path.glob("*.py")
    [line] = [n for n, text in enumerate(file.read_text().splitlines(), 1) if code in text]
    return file.name, line


FORGOTTEN = {
    "a step": ("charge(5)", "step 'charge'"),
    "a step that is mapped": ("charge(5).map(str)", "step 'charge'"),
    "a step that is retried": (
        "charge(5).retry(RetryPolicy.constant(1).with_max_retries(2))",
        "step 'charge'",
    ),
    "a step with a timeout": ("charge(5).timeout(1)", "step 'charge'"),
    "a step that is provided for": ("charge(5).provide(App())", "step 'charge'"),
    "a step in parallel": ("par(charge(5), pure(1))", "step 'charge'"),
    "a step of an effect": ("pure(5).checkpointed('charge')", "step 'charge'"),
    "a start": ("pay.start(5)", "pay.start"),
    "a start with a timeout": ("pay.start(5).timeout(1)", "pay.start"),
    "a resume": ("pay.resume('r')", "pay.resume"),
    "a call": ("pay.call(5)", "step 'pay'"),
    "a plan": ("pay.plan('r')", "pay.plan"),
}


def test_an_effect_that_is_never_run_fails_the_test(pytester: pytest.Pytester) -> None:
    tests = [
        f"\ndef test_{n}():\n    {effect}  # here {n}.\n"
        for n, (effect, _) in enumerate(FORGOTTEN.values())
    ]
    ran = run_tests(pytester, "".join(tests))

    ran.assert_outcomes(failed=len(FORGOTTEN), warnings=len(FORGOTTEN))
    for number, (_, name) in enumerate(FORGOTTEN.values()):
        file, line = place_of(pytester, f"# here {number}.")
        unused = f"{file}:{line}: ResourceWarning: {name} was created and never run"
        assert f"effectflow: {name}, created at {file}:{line}, was never run" in ran.outlines
        assert any(unused in shown for shown in ran.outlines)


KEPT_BY_THE_TEST = """
{marks}
{definition} test_it():
    with pytest.raises(Declined) as caught:
        {run}
    # The frame is part of a cycle now.
    assert caught.value.args == ()
    forgotten = charge(5)
"""


@pytest.mark.parametrize(
    ("marks", "definition", "run", "tests"),
    [
        ("", "def", "raise Declined", 1),
        ("@pytest.mark.anyio", "async def", "raise Declined", 2),
        ("@pytest.mark.asyncio", "async def", "raise Declined", 1),
    ],
    ids=["plain", "anyio", "pytest-asyncio"],
)
def test_an_effect_that_only_the_frame_of_the_test_held_was_never_run(
    pytester: pytest.Pytester, marks: str, definition: str, run: str, tests: int
) -> None:
    ran = run_tests(pytester, KEPT_BY_THE_TEST.format(marks=marks, definition=definition, run=run))

    ran.assert_outcomes(failed=tests, warnings=tests)


def test_an_effect_that_a_body_forgets_is_found_where_the_body_creates_it(
    pytester: pytest.Pytester,
) -> None:
    ran = run_tests(
        pytester,
        """
@workflow
def pay_twice(amount: int) -> Do[App, Declined, int]:
    charge(amount)  # here
    return (yield from charge(amount))

@pytest.mark.anyio
async def test_it(checkpoints):
    assert await pay_twice.start(5).run_or_raise(App(checkpoints)) == 5
""",
    )

    file, line = place_of(pytester, "# here")
    ran.assert_outcomes(failed=2, warnings=2)
    ran.stdout.fnmatch_lines(
        [f"effectflow: step 'charge', created at {file}:{line}, was never run"]
    )


def test_effects_that_a_handler_or_a_list_forgets_are_found(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
@do
def pay_or_refund() -> Do[App, Declined, None]:
    try:
        yield from decline(5)
    except Declined:
        charge(-5)

def test_handler():
    pay_or_refund().run_sync(App())

def test_list():
    effects = [charge(amount) for amount in range(3)]
    assert effects[1].run_sync(App()).unwrap() == 1
""",
    )

    ran.assert_outcomes(failed=2, warnings=3)


USED = {
    "run": "assert charge(5).run_sync(App()).unwrap() == 5",
    "started": "assert pay.start(5).run_sync(App()).unwrap() == 5",
    "a fallback that is not needed": (
        "assert charge(5).fallback_to(charge(6)).run_sync(App()).unwrap() == 5"
    ),
    "the second of two after a failure": "decline(5).zip(charge(6)).run_sync(App()).failure()",
    "in a continuation that is not reached": (
        "then = charge(6)\n    fail('no').and_then(lambda _: then).run_sync(App()).failure()"
    ),
    "a racer that never started": (
        "assert race([pure(1), charge(5)]).run_sync(App()).unwrap() == 1"
    ),
    "a racer of a generator": (
        "assert race(e for e in [pure(1), charge(5)]).run_sync(App()).unwrap() == 1"
    ),
    "a sibling of a failure": "par(decline(5), charge(6)).run_sync(App()).failure()",
    "siblings of a failure, read lazily": (
        "par_try_all((f(5) for f in [charge, decline, charge, charge]), limit=2)"
        ".run_sync(App()).failure()"
    ),
    "siblings of a failure, created late": (
        "par_traverse([1, 2, 3], lambda n: decline(n) if n == 2 else charge(n), limit=2)"
        ".run_sync(App()).failure()"
    ),
    "later in a traversal": (
        "effects = [decline(5), charge(6)]\n"
        "    traverse(effects, lambda effect: effect).run_sync(App()).failure()"
    ),
    "a finalizer": "assert charge(5).on_exit(charge(6).fallback(0)).run_sync(App()).unwrap() == 5",
    "what a resource is acquired by": (
        "bracket(charge(1), lambda _: charge(2), lambda _: charge(3)).run_sync(App()).unwrap()"
    ),
    "a source with no time": "charge(5).timeout(0).run_sync(App())",
    "what follows a failure in code": (
        "with pytest.raises(Declined):\n"
        "        import anyio\n"
        "        async def main():\n"
        "            for effect in [decline(1), charge(2)]:\n"
        "                await effect.run_or_raise(App())\n"
        "        anyio.run(main)"
    ),
    "an argument of a body": (
        "@do\n"
        "    def maybe(effect, is_needed) -> Do[App, Declined, None]:\n"
        "        if is_needed:\n"
        "            yield from effect\n"
        "        yield from pure(None)\n"
        "    maybe(charge(5), False).run_sync(App())"
    ),
    "an argument of a step": (
        "@step\n"
        "    def charge_or(amount: int, otherwise: Effect[App, Declined, int]) -> "
        "Effect[App, Declined, int]:\n"
        "        return charge(amount) if amount else otherwise\n"
        "    charge_or(5, charge(6)).run_sync(App()).unwrap()\n"
        "    charge_or(5, otherwise=charge(6)).run_sync(App()).unwrap()"
    ),
    "in a body that a failure ends": (
        "@do\n"
        "    def both() -> Do[App, Declined, None]:\n"
        "        first, second = decline(1), charge(2)\n"
        "        yield from first\n"
        "        yield from second\n"
        "    both().run_sync(App()).failure()"
    ),
    "in code that raises": (
        "def main():\n"
        "        effect = pay.start(5)\n"
        "        open('app/there is no such file')\n"
        "        effect.run_sync(App())\n"
        "    with pytest.raises(OSError):\n"
        "        main()"
    ),
    "what an operator rejects": (
        "with pytest.raises(ValueError, match='timeout'):\n        charge(5).timeout(-1)"
    ),
    "in a body that raises": (
        "@do\n"
        "    def both() -> Do[App, Declined, None]:\n"
        "        second = charge(2)\n"
        "        yield from charge(1)\n"
        "        raise Declined\n"
        "    both().run_sync(App()).failure()"
    ),
    "in a body that has a defect": (
        "@do\n"
        "    def both() -> Do[App, Declined, None]:\n"
        "        second = charge(2)\n"
        "        yield from charge(1)\n"
        "        raise ZeroDivisionError\n"
        "    with pytest.raises(ZeroDivisionError):\n"
        "        both().run_sync(App())"
    ),
    "in a body that is cancelled": (
        "@do\n"
        "    def both() -> Do[App, Declined, None]:\n"
        "        second = charge(2)\n"
        "        yield from sleep(60)\n"
        "        yield from second\n"
        "    assert both().timeout(0.01).run_sync(App()).failure()"
    ),
    "in a step within a step": "pay.body(5).checkpointed('all').run_sync(App()).unwrap()",
    "an effect that is given as a value": "pure(charge(5)).run_sync(App())",
    "in a data class of another effect": (
        "@dataclass\n"
        "    class Job:\n"
        "        effect: object\n"
        "    pure([Job(charge(5))]).map(len).run_sync(App())"
    ),
}


def test_what_is_part_of_an_effect_that_is_run_is_used(pytester: pytest.Pytester) -> None:
    tests = [f"\ndef test_{n}():\n    {code}\n" for n, code in enumerate(USED.values())]
    run_tests(pytester, "".join(tests)).assert_outcomes(passed=len(USED))


def test_a_skipped_effect_of_a_resume_counts_as_used(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
@workflow
def errand(amount: int) -> Do[App, Declined, int]:
    first = yield from with_checkpointing("outer", charge(amount))
    held = bracket(charge(1), lambda _: charge(2), lambda _: charge(3))
    yield from held.on_exit(charge(4).fallback(None))
    yield from race([charge(5), sleep(60)])
    yield from par(charge(6), charge(7)).timeout(60)
    yield from pay.call(8)
    effect = fail(Declined()) if amount else charge(9)
    return (yield from effect)

@pytest.mark.anyio
async def test_it(checkpoints):
    app = App(checkpoints)
    for _ in range(2):
        assert isinstance((await errand.start(10, run_id="r").run(app)).failure(), Declined)
    plan = await errand.plan("r").run_or_raise(app)
    assert not plan.start
    assert isinstance((await errand.resume("r").run(app)).failure(), Declined)
    assert app.charged == [10, 1, 3, 2, 4, 5, 6, 7, 8]

@pytest.mark.crash_everywhere
@pytest.mark.anyio
async def test_crashes(checkpoints):
    app = App(checkpoints)
    again = pay.start(5, run_id="s")
    await errand.start(10, run_id="r").run(app)
    await again.run_or_raise(app)
""",
    )

    ran.assert_outcomes(passed=4)


def test_effects_that_are_kept_or_inspected_need_not_be_run(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
OF_THE_MODULE = [charge(1)]

@pytest.fixture
def effects():
    return [charge(2)]

@pytest.mark.parametrize("effect", [charge(3), pay.start(3)])
def test_kept(effects, effect):
    effects.append(charge(4))
    OF_THE_MODULE.append(pay.start(5))

@pytest.mark.allow_unused_effects
def test_looked_at():
    assert repr(charge(5)) == "step('charge')"
""",
    )

    ran.assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("around", "found"),
    [
        ("par_all([effect])", 1),
        ("race([effect])", 1),
        ("effect.retry(RetryPolicy.constant(1).with_max_retries(1))", 1),
        ("pay.start(5).zip(effect)", 1),
        ("pure(1).on_exit(lambda _: effect)", 0),
    ],
)
def test_effects_may_be_deep(pytester: pytest.Pytester, around: str, found: int) -> None:
    """What an effect is made of was once searched twice for each level around it."""
    ran = run_tests(
        pytester,
        f"""
def around(effect):
    return {around}

@pytest.mark.parametrize("is_run", [True, False])
def test_it(is_run):
    effect = charge(5)
    for _ in range(40):
        effect = around(effect)
    if is_run:
        effect.run_sync(App())
""",
    )

    ran.assert_outcomes(passed=2 - found, failed=found, warnings=found)


def test_a_test_that_fails_says_why_it_fails(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
def test_it():
    charge(5)
    assert pay.name == "refund"

def test_skipped():
    charge(5)
    pytest.skip("not today")
""",
    )

    ran.assert_outcomes(failed=1, skipped=1)
    ran.stdout.no_fnmatch_line("*never run*")


def test_the_check_of_effects_can_be_turned_off(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
def test_it():
    charge(5)
""",
        ini="effectflow_unused_effects = false",
    )

    ran.assert_outcomes(passed=1)


def test_nothing_is_left_of_the_checks_after_a_test(pytester: pytest.Pytester) -> None:
    ran = run_tests(
        pytester,
        """
from effectflow.checkpoint.step import StepDefinition
from effectflow.effects import nodes
from effectflow.effects.interpreter import interpret

def replaced():
    from effectflow.checkpoint.durable_fiber import DurableFiber
    from effectflow.checkpoint.step_execution import StepExecution
    from effectflow.effects import interpreter

    functions = [
        Effect.run, Effect.run_or_raise, Effect.__iter__, Workflow._durably, StepExecution.execute,
        DurableFiber.execute, StepDefinition.execute_plainly, interpreter._unwind,
        *(node.__init__ for node in vars(nodes).values() if hasattr(node, "__init__")),
    ]
    return [each for each in functions if "testing/watch.py" in getattr(each, "__code__", each).__str__()]

@pytest.fixture(autouse=True)
def before_and_after():
    assert replaced() == []
    yield
    assert replaced() == []

def test_it():
    assert pay.start(5).run_sync(App()).unwrap() == 5
    assert replaced() != []
""",
        in_process=False,
    )

    ran.assert_outcomes(passed=1)


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
        max_parallel=1,
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


def test_the_check_of_arguments_can_be_turned_off(pytester: pytest.Pytester) -> None:
    # In a process of its own: the session around it has not turned the check off.
    ran = run_tests(
        pytester,
        ORDERS
        + """
def test_it():
    assert sell.start(7).run_sync(App()).unwrap() == 5
""",
        ini="effectflow_changed_arguments = false",
        in_process=False,
    )

    ran.assert_outcomes(passed=1)


MISTAKES = (
    SHOP
    + """
@workflow
def forgetful(amount: int) -> Do[App, Declined, int]:
    charge(5)
    yield from par_all([charge(6), decline(7)]).result()
    return (yield from charge(amount).fallback_to(charge(8)))


kept = charge(9)
print(forgetful.start(1).run_sync(App()))
pay.start(2)
"""
).replace("import pytest\n", "")


def test_development_mode_warns_of_effects_that_a_program_never_runs(
    pytester: pytest.Pytester,
) -> None:
    # In development mode, asyncio itself logs what took longer than 0.1 s, as anything may.
    quiet = "import logging\nlogging.getLogger('asyncio').setLevel(logging.ERROR)\n"
    program = pytester.makepyfile(app=quiet + MISTAKES)
    ran = pytester.run(sys.executable, "-X", "dev", program)

    ran.stdout.fnmatch_lines(["<Success: 1>"])
    assert [line.partition("app.py:")[2].partition(" ")[2] or line for line in ran.errlines] == [
        "ResourceWarning: step 'charge' was created and never run",
        "  charge(5)",
        "ResourceWarning: pay.start was created and never run",
        "  pay.start(2)",
    ]


def test_other_programs_are_not_watched(pytester: pytest.Pytester) -> None:
    program = pytester.makepyfile(
        app=MISTAKES + "\nimport sys\nassert 'effectflow.testing' not in sys.modules\n"
    )
    ran = pytester.run(sys.executable, "-W", "always", program)

    assert (ran.ret, ran.errlines) == (0, [])
