from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.ui.serving import Served, served

_RUNNING = ExitStack()
"""What the tests in a browser share, until one follows that is none of them."""


@pytest.fixture
def chromium() -> Browser:
    """Chromium, once for all tests of it that follow each other. Install it, as from Debian's package."""
    return _launched()


@cache
def _launched() -> Browser:
    path = shutil.which("chromium")
    assert path is not None, "install Chromium, such as Debian's package `chromium`"
    playwright = _RUNNING.enter_context(sync_playwright())
    # Pages live too short for what optimizes their code: without it, they take an eighth less time.
    code = "--js-flags=--no-opt,--no-maglev"
    browser = playwright.chromium.launch(
        executable_path=path,
        args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", code],
    )
    _RUNNING.callback(browser.close)
    _RUNNING.callback(_launched.cache_clear)
    return browser


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    # Playwright runs an event loop until it ends, and other tests have their own.
    if "chromium" not in getattr(nextitem, "fixturenames", ()):
        _RUNNING.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Serve pages until the end of the test: `pages = serve(app)`; see `served`."""
    with ExitStack() as stack:
        yield lambda app, **options: stack.enter_context(served(app, **options))


@pytest.fixture
def window(chromium: Browser, serve: object) -> Iterator[Page]:
    """A browser window, closed before the pages. The test fails for an error in its console."""
    context = chromium.new_context()
    context.set_default_timeout(10_000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    yield page
    context.close()
    assert not errors


@pytest.fixture
def quick_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that browsers watch are rendered up to ten times in a second."""
    for name in ("SECONDS_BETWEEN", "_SECONDS_UNTIL_LOOK"):
        monkeypatch.setattr(f"effectflow.ui.live.{name}", 0.1)
