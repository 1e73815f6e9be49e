"""Environments of workers: made once for each process, and left."""

from __future__ import annotations

from functools import partial
from typing import Never

import pytest
from returns.result import Success

from effectflow import par_traverse, pure
from tests.executors.conftest import MakeExecutor
from tests.executors.items import Folder, begin, opened

pytestmark = pytest.mark.anyio


async def test_an_environment_is_made_once_for_each_process_and_left(
    make_remote: MakeExecutor, folder: Folder
) -> None:
    async with make_remote(partial(opened, folder)) as executor:
        items = par_traverse(range(20), lambda n: executor.apply(begin, n), limit=4)
        workers = set((await items.run(None)).unwrap())

    begun = folder.begun()
    assert begun["entered"] == begun["left"] == len(workers)


async def test_an_environment_that_cannot_be_made_is_a_defect(make_remote: MakeExecutor) -> None:
    def make_env() -> Never:
        raise ConnectionError("no database")

    async with make_remote(make_env) as executor:
        for _ in range(2):
            with pytest.raises(ConnectionError, match="no database") as raised:
                await executor.apply(pure, 1).run(None)
            assert "in make_env\n" in raised.value.__notes__[0]


async def test_outside_of_its_block_a_remote_executor_runs_nothing(
    make_remote: MakeExecutor,
) -> None:
    executor = make_remote()
    with pytest.raises(RuntimeError, match="within `async with"):
        await executor.apply(pure, 1).run(None)
    async with executor:
        assert await executor.apply(pure, 1).run(None) == Success(1)
    with pytest.raises(RuntimeError, match="within `async with"):
        await executor.apply(pure, 1).run(None)
