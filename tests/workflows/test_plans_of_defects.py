"""What `plan` reports about runs that end in a defect again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Never

import pytest

from effectflow import Checkpoints, Do, bracket, die, effect, step, workflow
from effectflow.stores import MemoryStore

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints(MemoryStore()))
    done: list[str] = field(default_factory=list)


@step
@effect
def acquire(app: App) -> str:
    app.done.append("acquire")
    return "room"


@step
@effect
def release(app: App) -> None:
    app.done.append("release")


@step
@effect
def explode(app: App) -> None:
    raise ZeroDivisionError("in a step")


@workflow
def explodes_in_a_step(input: int) -> Do[App, Never, None]:
    yield from explode().on_exit(release())


@workflow
def explodes_in_a_use(input: int) -> Do[App, Never, None]:
    yield from bracket(acquire(), lambda _: release(), lambda _: die(ZeroDivisionError("in a use")))


@workflow
def explodes_between_steps(input: int) -> Do[App, Never, None]:
    yield from acquire()
    raise ZeroDivisionError("in the body")


async def test_plan_names_a_step_whose_settled_defect_recurs() -> None:
    app = App()
    with pytest.raises(ZeroDivisionError):
        await explodes_in_a_step.start(1, run_id="r").run(app)

    plan = (await explodes_in_a_step.plan("r").run(app)).unwrap()
    assert (plan.start, plan.recurs) == ((), ("explode",))
    with pytest.raises(ZeroDivisionError):
        await explodes_in_a_step.resume("r").run(app)
    assert app.done == ["release"]


async def test_plan_names_the_bracket_whose_recorded_defect_recurs() -> None:
    app = App()
    with pytest.raises(ZeroDivisionError):
        await explodes_in_a_use.start(1, run_id="r").run(app)

    plan = (await explodes_in_a_use.plan("r").run(app)).unwrap()
    assert (plan.start, plan.recurs) == ((), ("bracket",))
    with pytest.raises(ZeroDivisionError):
        await explodes_in_a_use.resume("r").run(app)
    assert app.done == ["acquire", "release"]


async def test_plan_raises_a_defect_of_the_body_unchanged() -> None:
    app = App()
    with pytest.raises(ZeroDivisionError):
        await explodes_between_steps.start(1, run_id="r").run(app)

    with pytest.raises(ZeroDivisionError, match="in the body"):
        await explodes_between_steps.plan("r").run(app)
    assert app.done == ["acquire"]
