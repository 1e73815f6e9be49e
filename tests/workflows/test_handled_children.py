"""The child whose failure was handled: a resume finds it again, or says that it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    ask,
    fail,
    par,
    par_traverse,
    pure,
    sleep,
    step,
    workflow,
)
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, last

pytestmark = pytest.mark.anyio


async def test_the_child_that_failed_first_is_found_by_its_key(store: MemoryStore) -> None:
    numbers = [1, 2, 3]
    ran: list[int] = []

    @step
    def child(number: int) -> Effect[App, Any, int]:
        return fail(f"{number} is bad") if number == 1 else pure(number)

    def noted(number: int) -> Effect[App, Any, int]:
        ran.append(number)
        return child(number)

    def key(number: int) -> str:
        """As a name of a file may be that is no text."""
        return f"[{chr(0xDC80 + number)}]/"

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        result = yield from par_traverse(list(numbers), noted, limit=1, key=key).result()
        yield from last()
        return result.failure()

    app = app_on(store, failing=["last"])
    assert await made.start(None, run_id="r").run(app) == Failure("crash here")
    numbers.reverse()
    app.world.recover()
    assert await made.resume("r").run(app) == Success("1 is bad")
    assert ran == [1, 1]


@pytest.mark.parametrize("key", [None, str])
@pytest.mark.parametrize("mended", ["item", "list"])
async def test_a_handled_failure_that_does_not_come_again_is_not_passed_over(
    store: MemoryStore, key: Any, mended: str
) -> None:
    """It was no step's, or its item is gone: there are no values to go on with."""
    names = ["a", "b"]
    seen: list[Any] = []

    def child(name: str) -> Effect[App, Any, str]:
        def look(app: App) -> Effect[object, Any, str]:
            is_bad = name == "b" and app.world.is_broken
            return fail(f"{name} is bad") if is_bad else pure(name)

        return ask(App).and_then(look)

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        result = yield from par_traverse(list(names), child, key=key).result()
        seen.append(result)
        yield from last()
        return "ended"

    app = app_on(store, failing=["last"])
    assert await made.start(None, run_id="r").run(app) == Failure("crash here")
    if mended == "list":
        names.remove("b")
    else:
        app.world.recover()
    place = r"item 1 of 'par_traverse'" if key is None else r"'par_traverse\[b\]'"
    with pytest.raises(RuntimeError, match=f"{place} led to a failure, which was handled"):
        await made.resume("r").run(app)
    assert seen == [Failure("b is bad")]


async def test_a_handled_failure_of_par_that_does_not_come_again_is_not_passed_over(
    store: MemoryStore,
) -> None:
    def look(app: App) -> Effect[object, str, int]:
        return fail("bad") if app.world.is_broken else pure(2)

    second = ask(App).and_then(look)

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        yield from par(sleep(0).map(lambda _: 1), second).result()
        yield from last()
        return "ended"

    app = app_on(store, failing=["last"])
    assert await made.start(None, run_id="r").run(app) == Failure("crash here")
    app.world.recover()
    with pytest.raises(RuntimeError, match="item 1 of 'par' led to a failure"):
        await made.resume("r").run(app)
