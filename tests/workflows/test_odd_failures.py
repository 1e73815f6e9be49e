"""Failures whose own code raises when they are looked at are written down all the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from returns.result import Failure

from effectflow import Checkpoints, Do, Effect, fail, step, with_checkpointing, workflow
from effectflow.checkpoint import (
    BeforeStep,
    Failed,
    Finished,
    RunStatus,
    Started,
    read_checkpoint,
    read_entries,
)
from effectflow.stores import MemoryStore
from tests.apps import App
from tests.workflows.journals import made_of

pytestmark = pytest.mark.anyio


class NoText:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Mute(Exception):
    """One that fails to say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass(eq=False, repr=False)
class Incomparable:
    """It can be saved, and cannot be compared with what was saved."""

    number: int = 1

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no answer")

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Unset:
    """It lacks an attribute that it says it has."""

    number: int = field(init=False)


@pytest.mark.parametrize("kind", [NoText, Mute, Incomparable, Unset])
async def test_a_failure_whose_own_code_raises_is_recorded(
    store: MemoryStore, kind: type[Any]
) -> None:
    error: Any = kind()

    failing = made_of(lambda: with_checkpointing("act", fail(error), error=kind))

    ended = await failing.start(None, run_id="r").run(App(Checkpoints(store)))

    assert isinstance(ended, Failure)
    assert ended.failure() is error
    kinds = [type(entry) for entry in await read_entries(store, "r")]
    assert kinds == [Started, BeforeStep, Failed, Finished]
    info = await store.info("r")
    assert info is not None

    assert info.summary.status is RunStatus.FAILED
    detail = (await read_checkpoint(store, "r")).history[0].detail
    assert "RuntimeError in Mute.__str__" in detail or kind is not Mute


async def test_a_predicate_that_raises_does_not_keep_the_failure_out_of_the_journal(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    def is_retryable(error: str) -> bool:
        raise ZeroDivisionError

    @step(retryable=is_retryable)
    def act() -> Effect[App, str, None]:
        return fail("bad")

    failing = made_of(lambda: act())

    app = App(Checkpoints(store))
    assert await failing.start(None, run_id="r").run(app) == Failure("bad")

    [failed] = [entry for entry in await read_entries(store, "r") if isinstance(entry, Failed)]
    assert (failed.error.message, failed.retryable) == ("bad", True)
    assert "ZeroDivisionError" in caplog.text
    assert (await failing.plan("r").run(app)).unwrap().retry == ("act",)


@dataclass
class Cause(Exception):
    shown: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        self.shown.append("shown")
        return "the cause"


async def test_only_of_a_defect_the_traceback_is_made(store: MemoryStore) -> None:
    cause = Cause()

    @step
    def act(is_declared: bool) -> Effect[App, ValueError, None]:
        error = ValueError("bad")
        error.__cause__ = cause
        if is_declared:
            return fail(error)
        raise error

    @workflow
    def acting(is_declared: bool) -> Do[App, ValueError, None]:
        yield from act(is_declared)

    app = App(Checkpoints(store))
    assert isinstance(await acting.start(True, run_id="typed").run(app), Failure)
    assert cause.shown == []

    with pytest.raises(ValueError, match="bad"):
        await acting.start(False, run_id="defect").run(app)
    [failed] = [one for one in await read_entries(store, "defect") if isinstance(one, Failed)]
    assert failed.error.traceback is not None
    assert "the cause" in failed.error.traceback
