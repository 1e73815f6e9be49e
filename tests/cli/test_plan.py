"""What `effectflow plan` says of a run whose failure a resume does not retry."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran

Command = Callable[..., Ran]

SAGA = textwrap.dedent("""
    from dataclasses import dataclass
    from effectflow import Checkpoints, Do, Effect, fail, pure, step, workflow

    @dataclass(frozen=True)
    class App:
        checkpoints: Checkpoints

    def environment(checkpoints: Checkpoints) -> App:
        return App(checkpoints)

    @step
    def charge(amount: int) -> Effect[App, str, int]:
        return fail("the bank is down")

    @step
    def release() -> Effect[App, str, None]:
        return pure(None)

    @workflow
    def buy(amount: int) -> Do[App, str, int]:
        return (yield from charge(amount).tap_err(lambda _: release()))

    @workflow
    def pay(amount: int) -> Do[App, str, int]:
        return (yield from charge(amount))
""")


@pytest.mark.parametrize("app", [(), ("--app", "saga")])
def test_a_plan_says_that_a_failure_stands_and_what_to_do(
    effectflow: Command, folder: Path, app: tuple[str, ...]
) -> None:
    (folder / "saga.py").write_text(SAGA)
    assert effectflow("run", "saga:buy", "--input", "5", "--run-id", "undone").code == 1
    assert effectflow("run", "saga:pay", "--input", "5", "--run-id", "failed").code == 1

    planned = effectflow("plan", "undone", *app).out
    assert "fails again: the failure of charge stands" in planned
    assert "start the work anew, under another id" in planned
    assert effectflow("plan", "undone", "--json", *app).json["fails_again"] == "charge"

    assert "fails again" not in effectflow("plan", "failed", *app).out
    assert effectflow("plan", "failed", "--json", *app).json["fails_again"] is None
