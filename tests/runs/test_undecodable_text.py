"""Text that no encoding can hold: half of a surrogate pair, as `os.fsdecode` makes of some file names."""

from __future__ import annotations

import os

import pytest

from effectflow import Checkpoints, Do, Effect, par_traverse, step, workflow
from effectflow.checkpoint import NotSerializable, read_checkpoint, with_checkpointing
from effectflow.effects import from_fn
from effectflow.effects.paths import child_path
from effectflow.stores import FileStore, MemoryStore, SqliteStore
from tests.apps import App

pytestmark = pytest.mark.anyio

LATIN_1 = os.fsdecode(b"caf\xe9")


def read(name: str) -> Effect[App, None, int]:
    def body(app: App) -> int:
        app.world.done.append(name)
        return len(name)

    return with_checkpointing("read", from_fn(body))


@workflow
def read_all(names: int) -> Do[App, None, list[int]]:
    sizes = yield from par_traverse([LATIN_1, "n/[x]", "tea"], read, key=lambda name: name)
    if names:
        yield from with_checkpointing("fail", from_fn(lambda _: 1 // 0))
    return sizes


async def test_a_key_that_cannot_be_encoded_names_a_flow() -> None:
    async with MemoryStore() as store:
        app = App(Checkpoints(store))
        assert await read_all.start(0, run_id="r").run_or_raise(app) == [4, 5, 3]
        steps = [done.step for done in (await read_checkpoint(store, "r")).completed_steps]
        assert sorted(steps) == [
            "par_traverse[caf%DCE9]/read",
            "par_traverse[n/%5Bx%5D]/read",
            "par_traverse[tea]/read",
        ]

        with pytest.raises(ZeroDivisionError):
            await read_all.start(1, run_id="s").run(app)

        app.world.done.clear()
        with pytest.raises(ZeroDivisionError):
            await read_all.resume("s").run(app)
        assert app.world.done == []


def test_keys_that_differ_have_paths_that_differ() -> None:
    keys = ["\udce9", "%DCE9", "%25DCE9", "\udcea", "%", "[", "\n"]

    assert len({child_path("p", key) for key in keys}) == len(keys)


@pytest.mark.parametrize("store", ["memory", "sqlite", "file"])
async def test_every_store_rejects_a_run_id_that_cannot_be_encoded(
    store: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    opened = {
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(folder / "runs.db"),
        "file": lambda: FileStore(folder),
    }[store]()
    async with opened:
        app = App(Checkpoints(opened))
        for run in (read_all.start(0, run_id=LATIN_1), read_all.resume(LATIN_1)):
            with pytest.raises(NotSerializable, match="run_id: the text has a lone surrogate at 3"):
                await run.run_or_raise(app)
        assert app.world.done == []
        assert await opened.find() == []


def test_a_step_name_that_cannot_be_encoded_is_rejected_at_once() -> None:
    with pytest.raises(ValueError, match="cannot name a step"):
        with_checkpointing(LATIN_1, from_fn(lambda _: 1))
    with pytest.raises(ValueError, match="cannot name a step"):
        step(name="\ud800")(read)
