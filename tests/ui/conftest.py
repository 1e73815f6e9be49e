from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.ui.serving import Served, served


# Not for the session: its event loop is running until it ends, and other tests have their own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium, once for the tests of a module. It must be installed, as from Debian's package."""
    path = shutil.which("chromium")
    assert path is not None, "install Chromium, such as Debian's package `chromium`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


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
