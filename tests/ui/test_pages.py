from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from playwright.sync_api import Page, expect

from effectflow.stores import MemoryStore, SqliteStore
from effectflow.ui import create_app
from tests.ui.serving import Served
from tests.ui.small_app import order, small_app


def test_a_run_that_is_submitted_appears_on_the_page_of_runs(
    window: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    pages = serve(small_app(SqliteStore(tmp_path / "runs.db")))
    window.goto(pages.url)
    expect(window.get_by_role("link", name="order-1")).not_to_be_visible()
    pages.do(pages.client.submit, order, 5, run_id="order-1")
    row = window.get_by_role("row").filter(has_text="order-1")
    expect(row).to_contain_text("completed")
    window.evaluate("isSame = true")
    window.keyboard.press("Tab")
    window.keyboard.press("Enter")
    expect(window.get_by_role("main")).to_be_focused()
    assert window.evaluate("window.isSame")
    row.get_by_role("link").click()
    expect(window.get_by_role("heading", level=1)).to_have_text("order-1")


def test_tabs_in_the_background_take_no_connection_and_are_renewed_when_they_are_seen(
    window: Page, serve: Callable[..., Served]
) -> None:
    pages = serve(small_app(MemoryStore()), worker=False)
    # Without a screen, a browser takes all of its tabs for visible.
    window.context.add_init_script(
        "Object.defineProperty(document, 'hidden', {get: () => !window.isSeen})"
    )
    tabs = [window, *(window.context.new_page() for _ in range(6))]
    # A browser has six connections to a server.
    for tab in tabs:
        tab.goto(pages.url)
    pages.do(pages.client.submit, order, 5, run_id="order-1")
    expect(window.get_by_role("link", name="order-1")).not_to_be_visible()
    window.evaluate("isSeen = true; document.dispatchEvent(new Event('visibilitychange'))")
    expect(window.get_by_role("link", name="order-1")).to_be_visible()


def test_the_pages_are_small() -> None:
    """A wheel compresses its files like this."""
    folder = Path(create_app.__code__.co_filename).parent
    packed = BytesIO()
    with ZipFile(packed, "w", ZIP_DEFLATED) as wheel:
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                wheel.write(path, path.relative_to(folder))
    assert len(packed.getvalue()) < 150_000
