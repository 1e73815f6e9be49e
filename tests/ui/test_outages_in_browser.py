"""What a browser shows while the store or the server of the pages is away, and that it comes back."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from effectflow.stores import SqliteStore
from tests.cli.conftest import COMMAND, ENVIRONMENT
from tests.programs import PIPE, Program
from tests.ui.serving import Served
from tests.ui.small_app import order, small_app


@pytest.mark.usefixtures("quick_feeds")
def test_a_store_that_goes_away_is_told_and_comes_back(
    window: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    pages = serve(small_app(SqliteStore(tmp_path / "runs.db")), worker=False)
    pages.do(pages.client.submit, order, 5, run_id="before")
    window.goto(pages.url)
    row, banner = window.get_by_role("link", name="before"), window.locator("#banner")
    expect(row).to_be_visible()
    expect(banner).to_be_hidden()
    (tmp_path / "runs.db").rename(away / "runs.db")
    expect(banner).to_contain_text("moved")
    expect(row).to_be_visible()
    (away / "runs.db").rename(tmp_path / "runs.db")
    expect(banner).to_be_hidden()
    pages.do(pages.client.submit, order, 5, run_id="after")
    expect(window.get_by_role("link", name="after")).to_be_visible()


@contextmanager
def serving(path: Path, port: int, token: str = "") -> Iterator[Program]:
    """Serve pages in a process, which is killed at the end."""
    arguments = [*COMMAND, "ui", "--store", path.name, "--port", str(port)]
    environment = ENVIRONMENT | {"EFFECTFLOW_UI_TOKEN": token}
    with Program(arguments, cwd=path.parent, env=environment, stdout=PIPE) as program:
        try:
            assert program.stdout is not None
            assert "The pages are at" in program.stdout.readline()
            yield program
        finally:
            program.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_a_server_that_is_killed_is_told_and_comes_back(
    chromium: Browser, serve: Callable[..., Served], tmp_path: Path
) -> None:
    other = serve(small_app(SqliteStore(tmp_path / "runs.db")), worker=False)
    other.do(other.client.submit, order, 5, run_id="before")
    port = free_port()
    # Without `window`, because the console tells the lost connection as an error.
    window = chromium.new_page()
    banner = window.locator("#banner")
    with serving(tmp_path / "runs.db", port):
        window.goto(f"http://127.0.0.1:{port}")
        expect(window.get_by_role("link", name="before")).to_be_visible()
    expect(banner).to_contain_text("does not answer")
    other.do(other.client.submit, order, 5, run_id="meanwhile")
    expect(window.get_by_role("link", name="before")).to_be_visible()
    with serving(tmp_path / "runs.db", port):
        expect(window.get_by_role("link", name="meanwhile")).to_be_visible(timeout=20_000)
        expect(banner).to_be_hidden()
        window.close()


def test_a_server_with_another_token_is_told_and_watched_again_once_that_is_given(
    chromium: Browser, serve: Callable[..., Served], tmp_path: Path
) -> None:
    store = serve(small_app(SqliteStore(tmp_path / "runs.db")), worker=False)
    store.do(store.client.submit, order, 5, run_id="before")
    port = free_port()
    address = f"http://127.0.0.1:{port}/"
    # Without `window`, because the console tells the refusal as an error.
    context = chromium.new_context()
    window, other = context.new_page(), context.new_page()
    row, banner = window.get_by_role("link", name="before"), window.locator("#banner")
    with serving(tmp_path / "runs.db", port, "the first token"):
        window.goto(f"{address}?token=the+first+token")
        expect(row).to_be_visible()
    expect(banner).to_contain_text("does not answer")
    with serving(tmp_path / "runs.db", port, "the second token"):
        expect(banner).to_contain_text("asks for its token", timeout=20_000)
        # What was known last stays until the reader reloads.
        expect(row).to_be_visible()
        other.goto(f"{address}?token=the+second+token")
        expect(banner).to_be_hidden(timeout=20_000)
        context.close()


def test_a_login_that_has_ended_is_told(
    chromium: Browser, serve: Callable[..., Served], tmp_path: Path
) -> None:
    pages = serve(small_app(SqliteStore(tmp_path / "runs.db")), worker=False)
    window = chromium.new_page()
    window.goto(pages.url)
    banner = window.locator("#banner")
    expect(window.get_by_text("No runs yet.")).to_be_visible()
    elsewhere = {"location": "https://login.example/"}
    window.route("**", lambda route: route.fulfill(status=303, headers=elsewhere))
    # As when the reader comes back to the tab.
    window.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(banner).to_contain_text("a login again")
    window.unroute("**")
    expect(banner).to_be_hidden()
    window.close()
