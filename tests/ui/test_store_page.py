from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient

from effectflow import Checkpoints, Effect, pure, workflow
from effectflow.checkpoint import export_run, import_run
from effectflow.service import App, Client
from effectflow.stores import FileStore, MemoryStore, SqliteStore
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
            shown = pages.get(path)
            assert (shown.status_code, "changes allowed" in shown.text) == (200, False)
        refused = pages.post("/service/pause?kind=queue&name=x&do=pause")
        assert (refused.status_code, "read-only" in refused.text) == (403, True)
    assert [one.name for one in copied.parent.iterdir()] == ["runs.db"]
    assert copied.read_bytes() == (tmp_path / "runs.db").read_bytes()


def test_the_pages_of_a_store_that_no_worker_can_use_only_show(tmp_path: Path) -> None:
    app = small_app(FileStore(tmp_path))
    anyio.run(order.start(5, run_id="done").run, Environment(app.checkpoints))
    with TestClient(create_app(app, app)) as pages:
        shown = pages.get("/run?id=done")
        assert (shown.status_code, "Run again" in shown.text) == (200, False)
        refused = pages.post("/start?workflow=order", data={"input": "5"})
        assert (refused.status_code, "no worker would do the work" in refused.text) == (403, True)


def test_a_store_that_does_not_answer_is_told_soon_and_nothing_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(MemoryStore):
        is_silent = False

        async def find(self, query: Any = None) -> Any:
            if self.is_silent:
                await anyio.sleep(60)
            return await super().find(query)

    monkeypatch.setattr("effectflow.ui.store_access._SECONDS_KNOWN", 0.0)
    store = Silent()
    app = small_app(store)
    with TestClient(create_app(app, app)) as pages:
        assert pages.get("/").status_code == 200
        store.is_silent = True
        monkeypatch.setattr("effectflow.ui.store_access.SECONDS_TO_ANSWER", 0.01)
        assert pages.get("/").status_code == 503
        paused = pages.post("/service/pause?kind=queue&name=x&do=pause")
        assert (paused.status_code, "not answered for 0.01 s" in paused.text) == (503, True)
        store.is_silent = False
        monkeypatch.undo()
        assert "paused" not in pages.get("/service").text
