from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from starlette.testclient import TestClient

from effectflow import Checkpoints, Effect, pure, workflow
from effectflow.checkpoint import export_run, import_run
from effectflow.service import App, Client
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.ui import create_app
from tests.ui.small_app import Environment, order, small_app


@workflow(name="order", version="2")
def changed(amount: int) -> Effect[Environment, str, int]:
    return pure(amount)


def test_it_shows_what_the_store_is_and_has(tmp_path: Path) -> None:
    checkpoints = Checkpoints(SqliteStore(tmp_path / "runs.db"))

    async def fill() -> None:
        async with Client(checkpoints) as client:
            await client.submit(order, 5, run_id="waits")
            await order.start(5, run_id="done").run(Environment(checkpoints))

    anyio.run(fill)
    app = App([changed], environment=Environment, checkpoints=checkpoints)
    with TestClient(create_app(app, app)) as pages:
        text = pages.get("/store").text
    for shown in ("SqliteStore(", "survives a power loss", "layout 6, entries 1", "KiB"):
        assert shown in text
    for shown in ("pending 1", "completed 1", "version 2"):
        assert shown in text


def test_it_verifies_the_newest_runs_or_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(MemoryStore())

    async def fill() -> None:
        async with checkpoints.store as store:
            for run_id in ("good", "bad"):
                await order.start(5, run_id=run_id).run(Environment(checkpoints))
            run = await export_run(store, "bad")
            await store.delete("bad")
            await import_run(store, replace(run, bodies=(*run.bodies[:-1], b"damaged")))

    anyio.run(fill)
    with TestClient(create_app(checkpoints)) as pages:
        assert "verified" not in pages.get("/store").text
        text = pages.get("/store?newest=50").text
        assert "2 runs with 8 entries verified: 1 damaged." in text
        assert 'href="/run?id=bad">bad</a>: 3 of 4 entries are good.' in text
        assert "verified: none damaged." in pages.get("/store?run=good").text
        assert pages.get("/store?run=unknown").status_code == 404
        for wrong in ("0", "201", "-1", "x", "9" * 50):
            assert pages.get(f"/store?newest={wrong}").status_code == 400


def test_a_copied_file_that_may_only_be_read_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Checkpoints(SqliteStore(tmp_path / "runs.db"))

    async def fill() -> None:
        await order.start(5, run_id="done").run(Environment(original))

    anyio.run(fill)
    copied = tmp_path / "copy" / "runs.db"
    copied.parent.mkdir()
    copied.write_bytes((tmp_path / "runs.db").read_bytes())
    # The tests may run as root, who may write everything.
    monkeypatch.setattr("os.access", lambda *_: False)
    app = small_app(SqliteStore(copied))
    with TestClient(create_app(app, app)) as pages:
        assert "it can only be read" in pages.get("/store?newest=5").text
        for path in ("/", "/run?id=done", "/run/history?id=done", "/service"):
            assert pages.get(path).status_code == 200
        refused = pages.post("/service/pause?kind=queue&name=x&do=pause")
        assert (refused.status_code, "read-only" in refused.text) == (503, True)
    assert [one.name for one in copied.parent.iterdir()] == ["runs.db"]
    assert copied.read_bytes() == (tmp_path / "runs.db").read_bytes()
