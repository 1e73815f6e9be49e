"""The commands that repair a run: the outcome of a step given by hand, and forks."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

SHOP = textwrap.dedent("""
    from dataclasses import dataclass

    from effectflow import App, Checkpoints, Do, Effect, effect, step, workflow
    from effectflow.stores import SqliteStore


    class Declined(Exception):
        pass


    @dataclass(frozen=True)
    class Receipt:
        number: int
        by: str


    @dataclass(frozen=True)
    class Shop:
        checkpoints: Checkpoints


    @effect(errors=Declined)
    def ask_bank(shop: Shop, amount: int) -> Receipt:
        raise Declined("no account")


    @step
    def check(amount: int) -> Effect[Shop, Declined, int]:
        return effect(lambda shop: amount)()


    @step(retryable=False)
    def pay(amount: int) -> Effect[Shop, Declined, Receipt]:
        return ask_bank(amount)


    @workflow
    def order(amount: int) -> Do[Shop, Declined, str]:
        checked = yield from check(amount)
        receipt = yield from pay(checked)
        return f"{checked} paid by {receipt.by}"


    app = App([order], environment=Shop, checkpoints=Checkpoints(SqliteStore("shop.db")))
""")
APP = ("--app", "till:app")


@pytest.fixture(autouse=True)
def failed(folder: Path, effectflow: Command) -> None:
    (folder / "till.py").write_text(SHOP)
    ran = effectflow("run", "order", *APP, "--input", "5", "--run-id", "o1")
    assert ran.code == 1, ran


def output_of(effectflow: Command, run_id: str) -> Any:
    resumed = effectflow("resume", run_id, *APP, "--json")
    assert resumed.code == 0, resumed
    return resumed.json["output"]


def test_a_step_is_completed_with_a_value_of_its_type(effectflow: Command) -> None:
    given = '{"number": 1, "by": "cheque"}'
    ran = effectflow("complete-step", "o1", "pay", given, *APP, "--by", "ann")
    assert ran.code == 0, ran
    assert "step 'pay' completed by ann" in ran.out
    assert "effectflow resume o1 --app till:app" in ran.out
    assert output_of(effectflow, "o1") == "5 paid by cheque"
    history = effectflow("history", "o1", *APP).out
    assert "Resumed      by ann, tries again what failed" in history


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["complete-step", "o1", "pay", '{"number": 1}'], 2, "step 'pay': the value does not fit"),
        (["complete-step", "o1", "pay", "{"], 2, "the value is not JSON"),
        (["complete-step", "o1", "ship", "1"], 4, "no step 'ship' has begun"),
        (["complete-step", "o1", "check", "1"], 4, "step 'check' has ended"),
        (["complete-step", "o2", "pay", "1"], 4, "o2"),
        (["fail-step", "o1", "pay", "--type", "KeyErr"], 2, "it declares: till.Declined"),
        (["fork", "o1", "--at", "99"], 4, "has no entry 99"),
        (["fork", "o1", "--change", "pay"], 2, "--change takes STEP=JSON"),
        (["fork", "o1", "--change", "check=true"], 2, "step 'check': the value does not fit"),
        (["fork", "o1", "--input", "1", "--at", "2"], 2, "leave out --at and --change"),
        (["fork", "o1", "--input", '"x"'], 2, "the input does not fit"),
        (["fork", "o1", "--run-id", "o1"], 4, "exists already"),
    ],
)
def test_wrong_changes_are_rejected(
    effectflow: Command, arguments: list[str], code: int, said: str
) -> None:
    before = effectflow("history", "o1", *APP, "--json").json
    ran = effectflow(*arguments, *APP)
    assert (ran.code, said in ran.err) == (code, True), ran
    assert effectflow("history", "o1", *APP, "--json").json == before
    assert len(effectflow("list", *APP, "--json").json) == 1


def test_a_step_that_declares_no_error_fails_with_a_runtime_error(
    effectflow: Command, folder: Path
) -> None:
    with (folder / "plain.py").open("w") as module:
        module.write(
            "from effectflow import step, workflow\n@step\nasync def split(n: int) -> int:\n"
            "    return 1 // n\n@workflow\nasync def shared(n: int) -> int:\n"
            "    try:\n        return await split(n)\n"
            "    except RuntimeError:\n        return 7\n"
        )
    app = ("--app", "plain")
    assert effectflow("run", "plain:shared", "--input", "0", "--run-id", "s").code == 1
    assert effectflow("fail-step", "s", "split", "hopeless", *app).code == 0
    assert effectflow("resume", "s", *app, "--json").json["output"] == 7


def test_a_step_is_failed_with_an_error_that_it_declares(effectflow: Command) -> None:
    ran = effectflow("fail-step", "o1", "pay", "closed", *APP, "--json")
    assert ran.code == 0, ran
    assert ran.json["step"] == "pay"
    resumed = effectflow("resume", "o1", *APP)
    assert resumed.code == 1
    assert "Declined: closed" in resumed.err + resumed.out


def test_a_fork_has_other_outputs_and_says_where_it_comes_from(effectflow: Command) -> None:
    changes = ("--change", "check=7", "--run-id", "o2", "--by", "ann", "--json")
    made = effectflow("fork", "o1", *changes, *APP)
    assert made.code == 0, made
    assert made.json == {"run_id": "o2", "forked_from": "o1", "by": "ann"}
    assert "o1@3" in effectflow("show", "o2", *APP).out
    assert "forked from o1@3 by ann" in effectflow("history", "o2", *APP).out
    assert effectflow("resume", "o2", *APP).code == 1
    assert effectflow("complete-step", "o2", "pay", '{"number": 2, "by": "me"}', *APP).code == 0
    assert output_of(effectflow, "o2") == "7 paid by me"


def test_a_fork_at_a_step_and_one_with_another_input(effectflow: Command) -> None:
    for run_id, options in [("at", ("--at", "pay")), ("in", ("--input", "9")), ("same", ())]:
        assert effectflow("fork", "o1", *options, "--run-id", run_id, *APP).code == 0
        assert effectflow("resume", run_id, *APP).code == 1
        given = '{"number": 1, "by": "me"}'
        assert effectflow("complete-step", run_id, "pay", given, *APP).code == 0
    outputs = [output_of(effectflow, run_id) for run_id in ("at", "in", "same")]
    assert outputs == ["5 paid by me", "9 paid by me", "5 paid by me"]
