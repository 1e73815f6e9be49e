"""What `effectflow plan` reports."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from effectflow.checkpoint import CheckpointError, ResumePlan, Unverified
from effectflow.cli.render import say_lines
from effectflow.cli.show_plan import plan_lines
from tests.cli.conftest import Command

SAGA = textwrap.dedent("""
    from effectflow import Do, Effect, fail, pure, step, workflow

    @step
    def reserve(amount: int) -> Effect[object, str, int]:
        return pure(amount)

    @step
    def charge(amount: int) -> Effect[object, str, int]:
        return fail("the bank is down")

    @step
    def release() -> Effect[object, str, None]:
        return pure(None)

    @workflow
    def buy(amount: int) -> Do[object, str, int]:
        return (yield from charge(amount).tap_err(lambda _: release()))

    @workflow
    def pay(amount: int) -> Do[object, str, int]:
        reserved = yield from reserve(amount)
        return (yield from charge(reserved))
""")


@pytest.fixture(autouse=True)
def saga(folder: Path) -> None:
    (folder / "saga.py").write_text(SAGA)


def test_plan_reports_the_step_that_a_resume_retries(effectflow: Command) -> None:
    assert effectflow("run", "saga:pay", "--input", "5", "--run-id", "r").code == 1

    assert (
        effectflow("plan", "r", "--app", "saga").out
        == "skip: 1 completed step\nstart: charge (again)\n"
    )
    assert effectflow("plan", "r", "--json", "--app", "saga").json == {
        "run_id": "r",
        "start": ["charge"],
        "retry": ["charge"],
        "skip": ["reserve"],
        "recurs": [],
        "waiting": [],
        "unverified": [],
        "problem": None,
        "is_complete": False,
        "reason": "",
    }


def test_plan_reports_a_failure_that_recurs_and_what_to_do(effectflow: Command) -> None:
    assert effectflow("run", "saga:buy", "--input", "5", "--run-id", "r").code == 1

    out = effectflow("plan", "r", "--app", "saga").out
    assert "fails again: charge" in out
    assert "start a new run with another id" in out
    plan = effectflow("plan", "r", "--json", "--app", "saga").json
    assert (plan["start"], plan["retry"], plan["recurs"]) == ([], [], ["charge"])


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_plan_that_a_resume_would_reject_ends_with_its_exit_code(
    effectflow: Command, folder: Path, as_json: list[str]
) -> None:
    assert effectflow("run", "saga:pay", "--input", "5", "--run-id", "r").code == 1
    (folder / "changed.py").write_text(
        SAGA.replace("def reserve", "def hold").replace("reserve(", "hold(")
    )

    planned = effectflow("plan", "r", "--app", "changed", *as_json)
    assert planned.code == effectflow("resume", "r", "--app", "changed").code == 4
    assert "reserve" in (
        planned.json["problem"] if as_json else planned.out.partition("problem: ")[2]
    )


def test_every_part_of_a_plan_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ResumePlan(
        start=("pay", "notify"),
        retry=("pay",),
        skip=("reserve",),
        recurs=("audit",),
        waiting=("sleep#2",),
        unverified=(Unverified("ship", "it follows an asynchronous effect"),),
        problem=CheckpointError("the outcome of step 'charge' is unknown"),
    )
    say_lines(plan_lines(plan, "buy", "try --app mall"))

    fails = (
        "fails again: audit; the run ends with its recorded failure, which a resume does not retry."
    )
    assert capsys.readouterr().out.splitlines() == [
        "skip: 1 completed step",
        "start: pay (again)",
        "start: notify",
        "wait: sleep#2",
        f"{fails} To try again, start a new run with another id",
        "unverified: ship (it follows an asynchronous effect)",
        "problem: the outcome of step 'charge' is unknown",
    ]


def test_a_next_step_that_only_the_code_knows_is_named_as_such(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = ResumePlan(reason="only the workflow's code determines the next step")
    say_lines(plan_lines(plan, "buy", "try --app mall"))

    shown = capsys.readouterr().out
    assert "start: unknown; only the code of buy can tell: try --app mall" in shown


def test_a_plan_of_code_that_reaches_no_step_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say_lines(plan_lines(ResumePlan(), "buy", ""))
    assert "start: no step is reached" in capsys.readouterr().out


def test_a_plan_that_stops_at_an_effect_between_steps_names_it_and_the_option_that_runs_it(
    effectflow: Command, folder: Path
) -> None:
    (folder / "look.py").write_text("""
from effectflow import Do, Effect, fail, pure, step, workflow
from effectflow.effects import from_async

async def look_up(env: object) -> int:
    return 5

@step
def reserve() -> Effect[object, str, None]:
    return pure(None)

@workflow
def buy(_: None) -> Do[object, str, None]:
    yield from reserve()
    amount = yield from from_async(look_up)
    yield from fail(f"{amount} is too much")
""")
    assert effectflow("run", "look:buy", "--run-id", "r").code == 1

    out = effectflow("plan", "r", "--app", "look").out
    assert "start: unknown, as from_async(look_up) would be awaited" in out
    assert "add --effects" in out
    plan = effectflow("plan", "r", "--json", "--app", "look").json
    assert "look_up" in plan["reason"]
    assert "no step is reached" in effectflow("plan", "r", "--app", "look", "--effects").out


def test_a_plan_of_code_without_the_code_says_that_it_needs_it(effectflow: Command) -> None:
    effectflow("run", "saga:pay", "--input", "5", "--run-id", "r")

    assert effectflow("plan", "r").out == (
        "skip: 1 completed step\nstart: unknown; only the code of pay can tell: try --app saga\n"
    )
