"""What an item may raise in a worker, and still be told apart from a worker that died."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, Never

import pytest

from effectflow import from_fn, pure
from tests.executors.conftest import MakeExecutor

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Frozen(Exception):
    reason: str


@dataclass(frozen=True, slots=True)
class FrozenWithSlots(Exception):
    reason: str


@pytest.mark.parametrize("kind", [Frozen, FrozenWithSlots])
async def test_a_defect_that_is_frozen_is_raised_as_itself(
    make_remote: MakeExecutor, kind: type[Frozen | FrozenWithSlots]
) -> None:
    def refuse(reason: str, _: object) -> Never:
        raise kind(reason)

    async with make_remote() as executor:
        with pytest.raises(kind) as raised:
            await executor.apply(lambda reason: from_fn(partial(refuse, reason)), "late").run(None)

    assert raised.value.reason == "late"


@pytest.mark.parametrize("leaving", [GeneratorExit("done"), asyncio.CancelledError("done")])
async def test_an_item_that_cancels_nobody_but_itself_is_a_defect(
    make_remote: MakeExecutor, leaving: BaseException
) -> None:
    def leave(_: object) -> Never:
        raise leaving

    async with make_remote() as executor:
        with pytest.raises(RuntimeError, match=r"the item raised \w+\('done'\)") as raised:
            await executor.apply(lambda _: from_fn(leave), None).run(None)

    assert "in leave\n" in raised.value.__notes__[0]


async def test_a_module_that_wants_to_exit_is_a_defect(make_remote: MakeExecutor) -> None:
    async with make_remote() as executor:
        with pytest.raises(RuntimeError, match=r"raised SystemExit\(3\)"):
            await executor.apply(pure, ExitsWhenRead()).run(None)


class ExitsWhenRead:
    """Travels as what a module is that calls `sys.exit` when it is imported."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)
