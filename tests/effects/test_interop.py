"""To and from the containers of `returns`."""

from __future__ import annotations

from typing import Any

import pytest
from returns.context import RequiresContextFutureResult
from returns.future import FutureFailure, FutureResult, FutureSuccess
from returns.io import IOFailure, IOSuccess
from returns.maybe import Nothing, Some
from returns.result import Failure, Success

from effectflow import Effect, fail, pure
from effectflow.effects import from_fn, from_result
from effectflow.effects.interop import (
    from_future_result,
    from_maybe,
    to_future_result,
    to_maybe,
    to_requires_context,
)

pytestmark = pytest.mark.anyio


async def test_results_come_in_and_go_out() -> None:
    for result in (Success(1), Failure("no")):
        assert await from_result(result).run(None) == result


async def test_maybes() -> None:
    assert await from_maybe(Some(1)).run(None) == Success(1)
    assert await from_maybe(Nothing).run(None) == Failure(None)
    assert await to_maybe(pure(1), None) == Some(1)
    assert await to_maybe(fail("no"), None) == Nothing
    assert await to_maybe(pure(None), None) == Some(None)


async def test_future_results() -> None:
    def future(env: int) -> FutureResult[int, str]:
        return FutureSuccess(env + 1) if env > 0 else FutureFailure("no")

    effect = from_future_result(future)
    assert [await effect.run(1), await effect.run(1), await effect.run(0)] == [
        Success(2),
        Success(2),
        Failure("no"),
    ]
    assert await to_future_result(effect, 1) == IOSuccess(2)
    assert await to_future_result(effect, 0) == IOFailure("no")


async def test_context_future_results() -> None:
    coming: RequiresContextFutureResult[int, str, int] = RequiresContextFutureResult(
        lambda env: FutureSuccess(env * 2)
    )
    assert await from_future_result(coming).run(4) == Success(8)

    env: Effect[int, Any, int] = from_fn(lambda env: env)
    going = to_requires_context(env.map(lambda n: n + 1))
    assert await going(4) == IOSuccess(5)
    assert await going(5) == IOSuccess(6)
