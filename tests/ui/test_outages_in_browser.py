"""What a browser shows while the store or the server of the pages is away, and that it comes back."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from effectflow import Checkpoints, Effect, pure, workflow
from effectflow.service import App
from effectflow.stores import SqliteStore
from tests.cli.conftest import COMMAND, ENVIRONMENT
from tests.programs import PIPE, Program
from tests.ui.serving import Served


@dataclass(frozen=True)
class Environment:
    checkpoints: Checkpoints


@workflow
def greet(name: str) -> Effect[Environment, str, str]:
    return pure(name)


def app_of(path: Path) -> App[Environment]:
    return App([greet], environment=Environment, checkpoints=Checkpoints(SqliteStore(path)))


@pytest.mark.usefixtures("quick_feeds")
def test_a_store_that_goes_away_is_told_and_comes_back(
    window: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    pages = serve(app_of(tmp_path / "runs.db"), worker=False)
    pages.do(pages.client.submit, greet, "Ann", run_id="before")
    window.goto(pages.url)
    row, banner = window.get_by_role("link", name="before"), window.locator("#banner")
    expect(row).to_be_visible()
    expect(banner).to_be_hidden()
    (tmp_path / "runs.db").rename(away / "runs.db")
    expect(banner).to_contain_text("moved")
    expect(row).to_be_visible()
    (away / "runs.db").rename(tmp_path / "runs.db")
    expect(banner).to_be_hidden()
    pages.do(pages.client.submit, greet, "Bob", run_id="after")
    expect(window.get_by_role("link", name="after")).to_be_visible()


@contextmanager
def serving(path: Path, port: int) -> Iterator[Program]:
    """Serve pages in a process, which is killed at the end."""
    arguments = [*COMMAND, "ui", "--store", path.name, "--port", str(port)]
    with Program(arguments, cwd=path.parent, env=ENVIRONMENT, stdout=PIPE) as program:
        try:
            assert program.stdout is not None
            assert "The pages are at" in program.stdout.readline()
            yield program
        finally:
            program.kill()


def test_a_server_that_is_killed_is_told_and_comes_back(
    chromium: Browser, serve: Callable[..., Served], tmp_path: Path
) -> None:
    other = serve(app_of(tmp_path / "runs.db"), worker=False)
    other.do(other.client.submit, greet, "Ann", run_id="before")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Without `window`, because the console tells the lost connection as an error.
    window = chromium.new_page()
    banner = window.locator("#banner")
    with serving(tmp_path / "runs.db", port):
        window.goto(f"http://127.0.0.1:{port}")
        expect(window.get_by_role("link", name="before")).to_be_visible()
    expect(banner).to_contain_text("does not answer")
    other.do(other.client.submit, greet, "Bob", run_id="meanwhile")
    expect(window.get_by_role("link", name="before")).to_be_visible()
    with serving(tmp_path / "runs.db", port):
        expect(window.get_by_role("link", name="meanwhile")).to_be_visible(timeout=20_000)
        expect(banner).to_be_hidden()
        window.close()
