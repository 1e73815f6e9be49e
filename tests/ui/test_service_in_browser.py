"""The page of the service in a browser, beside a worker in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from playwright.sync_api import Page, expect

from effectflow import Checkpoints, Do, Effect, step, workflow
from effectflow.effects import from_async
from effectflow.service import App
from effectflow.stores import SqliteStore
from tests.cli.conftest import ENVIRONMENT
from tests.programs import Program
from tests.ui.serving import Served
from tests.ui.small_app import Environment


@step
def pack(item: str) -> Effect[object, str, str]:
    async def wait(_: object) -> str:
        await anyio.sleep(600)
        return item

    return from_async(wait)


@workflow
def parcel(item: str) -> Do[Environment, str, str]:
    return (yield from pack(item))


def app_of(path: Path) -> App[Environment]:
    return App([parcel], environment=Environment, checkpoints=Checkpoints(SqliteStore(path)))


WORKER = f"""
import sys
from pathlib import Path
import anyio
from effectflow.service import Worker
from {__name__} import app_of
async def work():
    async with Worker(app_of(Path(sys.argv[1]))):
        await anyio.sleep_forever()
anyio.run(work)
"""


@pytest.mark.usefixtures("quick_feeds")
def test_a_worker_that_is_killed_is_shown_as_lost_and_its_workflow_is_paused_by_keyboard(
    window: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    path = tmp_path / "runs.db"
    pages = serve(app_of(path), worker=False, by="ann")
    pages.do(pages.client.submit, parcel, "hat", run_id="parcel-1")
    window.goto(f"{pages.url}/service")
    rows = window.get_by_role("row")
    expect(rows.filter(has_text="process")).to_have_count(0)
    with Program(["-c", WORKER, str(path)], env=ENVIRONMENT) as worker:
        row = rows.filter(has_text=f"process {worker.pid} ")
        try:
            expect(row).to_contain_text("alive")
            expect(row).to_contain_text("parcel 1")
        finally:
            worker.kill()
        expect(row).to_contain_text("lost")

    window.get_by_role("link", name="Pause workflow parcel").focus()
    window.keyboard.press("Enter")
    expect(window.get_by_role("heading", level=1)).to_have_text("Pause workflow parcel")
    window.get_by_role("button", name="Pause").focus()
    window.keyboard.press("Enter")
    expect(window.get_by_role("link", name="Unpause workflow parcel")).to_be_visible()
    expect(window.locator("#workflow-parcel")).to_contain_text("paused by ann")
    assert [one.name for one in pages.do(pages.client.pauses)] == ["parcel"]
