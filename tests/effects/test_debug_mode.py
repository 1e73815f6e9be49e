"""In debug mode, effects that are created and never run are told, with the line that created them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHOP = """
from dataclasses import dataclass, field
from typing import Any

import anyio

from effectflow import *
from effectflow.effects import *
from effectflow.stores import MemoryStore


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints(MemoryStore()))


class Declined(Exception):
    pass


POLICY = RetryPolicy.constant(1).with_max_retries(2)


@step
def charge(amount: int) -> Effect[App, Declined, int]:
    return from_fn(lambda app: amount)


@step
def decline(amount: int) -> Effect[App, Declined, int]:
    return fail(Declined())


@do
def charge_twice(amount: int) -> Do[App, Declined, int]:
    yield from charge(amount)
    return (yield from charge(amount))


@workflow
def pay(amount: int) -> Do[App, Declined, int]:
    return (yield from charge(amount))


def run(effect: Effect[App, Any, Any]) -> None:
    effect.run_sync(App())
"""

FORGOTTEN = {
    "charge(5)": "step('charge')",
    "charge(5).map(str)": "step('charge')",
    "charge(5).provide(App())": "step('charge')",
    "charge(5).timeout(1)": "step('charge').timeout(1)",
    "charge(5).retry(POLICY)": "step('charge').retry(RetryPolicy.constant(1).with_max_retries(2))",
    "par(charge(5), pure(1))": "par(step('charge'), pure(1))",
    "par_traverse([1, 2], charge)": "par_traverse([1, 2], charge)",
    "pure(5).checkpointed('charge')": "step('charge')",
    "charge_twice(5)": "charge_twice(5)",
    "sleep(60)": "sleep(60)",
    "pay.start(5)": "pay.start(5)",
    "pay.start(5).timeout(1)": "pay.start(5).timeout(1)",
    "pay.resume('r')": "pay.resume('r')",
    "pay.call(5)": "pay.call(5)",
    "pay.plan('r')": "pay.plan('r')",
    "[charge(amount) for amount in range(3)]": "step('charge')",
}
"""Statements, and the effect that each one creates for nothing."""

USED = """
kept = charge(9)
run(charge(5).fallback_to(charge(6)))
run(decline(5).zip(charge(6)))
then = charge(6)
run(fail("no").and_then(lambda _: then))
del then
run(pure(5).and_then(lambda amount: charge(amount).fallback_to(charge_twice(amount))))
run(race([pure(1), charge(5)]))
run(par_traverse([1, 2, 3], lambda n: decline(n) if n == 2 else charge(n), limit=2))
run(charge(5).on_exit(charge(6).fallback(0)))
run(bracket(charge(1), lambda _: charge(2), lambda _: charge(3)))
run(charge(5).timeout(0))


@workflow
def errand(amount: int) -> Do[App, Declined, int]:
    yield from with_checkpointing("outer", charge(amount))
    yield from race([charge(5), sleep(60)])
    yield from pure(7).and_then(charge)
    yield from pay.call(8)
    return (yield from (decline(1) if amount else charge(9)))


async def lives() -> None:
    app = App()
    await errand.start(10, run_id="r").run(app)
    await errand.plan("r").run(app)
    await errand.resume("r").run(app)


anyio.run(lives)
"""
"""Effects that run, or are a part of one that does, although it may not be reached."""

IN_A_BODY = """
@workflow
async def forgetful(amount: int) -> int:
    charge(5)
    return await charge(amount)


run(forgetful.start(1))
"""


def warnings_of(program: str, tmp_path: Path, *options: str, **variables: str) -> list[str]:
    """Return what a program prints to stderr, without the name of its file."""
    file = tmp_path / "app.py"
    file.write_text(program)
    ran = subprocess.run(
        [sys.executable, *options, str(file)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stderr.replace(f"{file}:", "").splitlines()


def warnings_for(program: str, forgotten: dict[str, str]) -> list[str]:
    """Return the warnings of a program in which these statements are forgotten."""
    lines = [line.strip() for line in program.splitlines()]
    return [
        line
        for code, effect in forgotten.items()
        for line in (
            f"{lines.index(code) + 1}: RuntimeWarning: {effect} was created and never run",
            f"  {code}",
        )
    ]


def test_an_effect_that_is_never_run_is_told_and_one_that_need_not_run_is_not(
    tmp_path: Path,
) -> None:
    program = SHOP + USED + "\n".join(FORGOTTEN)

    told = warnings_of(program, tmp_path, EFFECTFLOW_DEBUG="1")

    assert told == warnings_for(program, FORGOTTEN)


def test_development_mode_tells_of_an_effect_that_a_body_forgets(tmp_path: Path) -> None:
    # In development mode, asyncio itself logs what took longer than 0.1 s, as anything may.
    quiet = "import logging\nlogging.getLogger('asyncio').setLevel(logging.ERROR)\n"
    program = quiet + SHOP + IN_A_BODY

    told = warnings_of(program, tmp_path, "-X", "dev")

    assert told == warnings_for(program, {"charge(5)": "step('charge')"})


def test_without_debug_mode_nothing_is_told(tmp_path: Path) -> None:
    program = SHOP + IN_A_BODY + "\n".join(FORGOTTEN)

    assert warnings_of(program, tmp_path, "-W", "always", EFFECTFLOW_DEBUG="") == []
