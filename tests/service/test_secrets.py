"""With encryption, no error, log or summary shows the values of a run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from effectflow import Checkpoints, Client, Do, Effect, Worker, Workflow, fail, pure, step, workflow
from effectflow.checkpoint import Encryption, RunConflict, StepInputChanged, find_run
from effectflow.service import App
from effectflow.stores import MemoryStore

pytestmark = pytest.mark.anyio

SECRET = "card 4111 1111"
KEYS = Encryption("2026", {"2026": b"k" * 32})


@dataclass(frozen=True)
class Env:
    checkpoints: Checkpoints


@step
def charge(card: str) -> Effect[Env, ValueError, str]:
    return fail(ValueError(card))


@step
def reserve(card: str) -> Effect[object, ValueError, str]:
    return pure(card)


@workflow
def refused(card: str) -> Do[Env, ValueError, str]:
    return (yield from charge(card))


@workflow
def defective(card: str) -> Do[Env, ValueError, str]:
    yield from ()
    raise KeyError(card)


@workflow
def mistyped(card: str) -> Do[Env, ValueError, int]:
    yield from ()
    return card  # type: ignore[return-value]  # that is the point


MADE: list[Workflow[Env, ValueError, str, Any]] = [refused, defective, mistyped]


@pytest.fixture
def checkpoints() -> Checkpoints:
    return Checkpoints(MemoryStore(), key=b"s" * 32, encryption=KEYS)


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.name)
async def test_a_worker_logs_no_value_of_an_encrypted_run(
    checkpoints: Checkpoints,
    made: Workflow[Env, ValueError, str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await Client(checkpoints).submit(made, SECRET, run_id="r")
    async with Worker(App[Env]([made], environment=Env, checkpoints=checkpoints)):
        with anyio.fail_after(10):
            while not any(one.levelno == logging.WARNING for one in caplog.records):
                await anyio.sleep(0.01)
    assert SECRET not in caplog.text
    assert "run 'r'" in caplog.text
    info = await find_run(checkpoints.store, "r")
    assert SECRET not in repr(info)


async def test_a_conflict_shows_no_input_of_another_caller(checkpoints: Checkpoints) -> None:
    env = Env(checkpoints)
    await refused.start(SECRET, run_id="r").run(env)

    conflict = (await refused.start("mine", run_id="r").run(env)).failure()
    assert isinstance(conflict, RunConflict)
    assert "another input" in str(conflict)
    assert SECRET not in str(conflict)


async def test_changed_arguments_are_not_shown(checkpoints: Checkpoints) -> None:
    cards = iter([SECRET, "another card"])

    @workflow
    def changed(_: None) -> Do[Env, ValueError, str]:
        yield from reserve(next(cards))
        return (yield from charge("refused"))

    env = Env(checkpoints)
    await changed.start(None, run_id="r").run(env)
    error = (await changed.resume("r").run(env)).failure()
    assert isinstance(error, StepInputChanged)
    assert SECRET not in str(error)
