"""The environments of workers are made once per process, and left at the end."""

from __future__ import annotations

import sys
from functools import partial
from threading import Lock
from typing import Never

import anyio
import pytest
from returns.result import Success

from effectflow import par_traverse, pure
from tests.executors.conftest import MakeExecutor
from tests.executors.items import Folder, begin, opened, opened_plainly

pytestmark = pytest.mark.anyio


async def test_an_environment_is_entered_once_per_process_and_left(
    make_remote: MakeExecutor, folder: Folder
) -> None:
    async with make_remote(partial(opened, folder)) as executor:
        items = par_traverse(range(20), lambda n: executor.apply(begin, n), limit=4)
        workers = set((await items.run(None)).unwrap())

    begun = folder.begun()
    assert begun["entered"] == begun["left"] == len(workers)


async def test_an_environment_that_cannot_be_made_is_a_defect(make_remote: MakeExecutor) -> None:
    def environment() -> Never:
        raise ConnectionError("no database")

    async with make_remote(environment) as executor:
        for _ in range(2):
            with pytest.raises(ConnectionError, match="no database") as raised:
                await executor.apply(pure, 1).run(None)
            assert "in environment\n" in raised.value.__notes__[0]


async def test_a_factory_that_exits_is_a_defect(make_remote: MakeExecutor) -> None:
    async with make_remote(lambda: sys.exit(3)) as executor:
        with pytest.raises(RuntimeError, match=r"`environment` raised SystemExit\(3\)"):
            await executor.apply(pure, 1).run(None)


async def test_a_plain_context_manager_is_entered_once_per_process_and_left(
    make_remote: MakeExecutor, folder: Folder
) -> None:
    async with make_remote(partial(opened_plainly, folder)) as executor:
        for _ in range(3):
            assert isinstance((await executor.apply(begin, "item").run(None)).unwrap(), int)

    begun = folder.begun()
    assert begun["item"] == 3
    assert begun["entered"] == begun["left"] >= 1


async def test_an_async_factory_is_awaited(make_remote: MakeExecutor, folder: Folder) -> None:
    async def environment() -> Folder:
        await anyio.sleep(0)
        return folder

    async with make_remote(environment) as executor:
        await executor.apply(begin, "item").run_or_raise(None)
    assert folder.begun() == {"item": 1}


async def test_entering_fails_if_the_factory_cannot_be_pickled(make_remote: MakeExecutor) -> None:
    lock = Lock()
    with pytest.raises(TypeError, match=r"lock.* That is in `environment`, <function"):
        async with make_remote(lambda: lock):
            raise AssertionError("entered")


def test_a_factory_must_be_callable(make_remote: MakeExecutor) -> None:
    with pytest.raises(TypeError, match="must be a function that makes it, not 5"):
        make_remote(5)


async def test_an_executor_runs_items_only_inside_its_block(make_remote: MakeExecutor) -> None:
    executor = make_remote()
    with pytest.raises(RuntimeError, match="inside `async with"):
        await executor.apply(pure, 1).run(None)
    async with executor:
        assert await executor.apply(pure, 1).run(None) == Success(1)
    with pytest.raises(RuntimeError, match="inside `async with"):
        await executor.apply(pure, 1).run(None)


async def test_an_executor_cannot_be_entered_twice_at_a_time(make_remote: MakeExecutor) -> None:
    executor = make_remote()
    async with executor:
        with pytest.raises(RuntimeError, match="already been entered: enter it once, and share it"):
            await executor.__aenter__()

        assert await executor.apply(pure, 1).run(None) == Success(1)

    async with executor:
        assert await executor.apply(pure, 2).run(None) == Success(2)
