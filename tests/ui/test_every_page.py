"""Every page in a browser: light, dark, 360 px wide, without JavaScript, and as axe sees it.

The pages are those of the routes of the application, so this also tests new ones. By default, it looks at
the pages of two actions, and at three pages without JavaScript.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from starlette.routing import Route

from effectflow.service import App
from effectflow.ui import create_app
from effectflow.ui.actions import ACTIONS
from tests.ui.serving import Served, served
from tests.ui.shop_runs import (
    APPROVAL,
    CLAIM,
    COMPLETE,
    FAILED,
    JOB,
    PAUSED,
    STOPPED,
    fill,
    shop_app,
)

RUNS = (APPROVAL, STOPPED, FAILED, PAUSED, JOB, COMPLETE)

QUERIES: dict[str, list[dict[str, str]]] = {
    "/run": [{"id": APPROVAL}, {"id": JOB}, {"id": FAILED}],
    "/run/drawing": [{"id": CLAIM}],
    "/start": [{}, {"workflow": "fulfil"}, {"workflow": "stocktaking"}],
    "/service/pause": [{"kind": "queue", "name": "fulfil"}],
    "/store": [{}, {"newest": "5"}],
}
"""What to ask pages for that need it, or have several forms. Those below /run take a run."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    app = shop_app(tmp_path_factory.mktemp("shop") / "orders.db")
    with served(app, worker=False) as pages:
        pages.do(fill, app)
        yield pages


NO_PAGES = ("/bulk", "/run/download")
"""What only answers a form, and what a browser saves."""

SOME_ACTIONS = ("signal", "fork")


def urls(app: App[Any], actions: Iterable[str]) -> list[list[str]]:
    """Return the addresses of each page; of those of an action, with runs that it may act on."""
    found: list[list[str]] = []
    for route in cast("Any", create_app(app, app)).routes:
        if not isinstance(route, Route) or route.path in NO_PAGES:
            continue
        for name in actions if "{name}" in route.path else ("",):
            path = route.path.replace("{name}", name)
            if name:
                found.append([f"{path}?{urlencode({'id': run_id})}" for run_id in RUNS])
            else:
                of_a_run = [{"id": RUNS[0]}] if path.startswith("/run") else [{}]
                found += [[f"{path}?{urlencode(one)}"] for one in QUERIES.get(path, of_a_run)]
    return found


@contextmanager
def window(chromium: Browser, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """Open a window. Yield it, and what its console tells as errors."""
    context = chromium.new_context(**options)
    context.set_default_timeout(20_000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    yield page, errors
    context.close()


def violations(page: Page, *rules: str) -> list[str]:
    """Return what axe finds by these rules, or by all: the rule and the first element."""
    options = {"resultTypes": ["violations"], **({"runOnly": [*rules]} if rules else {})}
    found = page.evaluate("options => axe.run(options)", options)["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0].get('failureSummary', '')}"
        for one in found
    ]


def problems_of(page: Page) -> Iterator[str]:
    """Yield what hinders people on a page."""
    if page.locator("h1").count() != 1:
        yield f"{page.locator('h1').count()} headings of level 1"
    if not re.fullmatch(r"\S.* · effectflow", page.title()):
        yield f"title {page.title()!r}"
    page.evaluate(Axe().axe_script)
    page.emulate_media(color_scheme="light")
    yield from violations(page)
    page.emulate_media(color_scheme="dark")
    for found in violations(page, "color-contrast"):
        yield f"dark: {found}"
    page.set_viewport_size({"width": 360, "height": 740})
    width = page.evaluate("document.documentElement.scrollWidth")
    if width > 360:
        yield f"{width} px wide on a screen of 360"
    page.set_viewport_size({"width": 1280, "height": 800})
    page.keyboard.press("Tab")
    if page.evaluate("document.activeElement.className") != "skip":
        yield "the first key does not lead to the link that skips the navigation"


@pytest.mark.parametrize(
    ("actions", "without_javascript"),
    [
        pytest.param(SOME_ACTIONS, 3, id="sample"),
        pytest.param(tuple(ACTIONS), None, id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_every_page_is_sound(
    chromium: Browser, pages: Served, actions: tuple[str, ...], without_javascript: int | None
) -> None:
    app = shop_app(Path("unused"))
    problems: list[str] = []
    shown: list[str] = []
    with window(chromium) as (page, errors):
        for addresses in urls(app, actions):
            for url in addresses:
                answer = page.goto(f"{pages.url}{url}")
                if answer is not None and answer.status == 200:
                    shown.append(url)
                    problems += [f"{url}: {one}" for one in problems_of(page)]
                    break
                # The console tells this status as an error.
                errors.clear()
            else:
                problems.append(f"{addresses}: shown for none")
            problems += [f"{addresses}: console: {one}" for one in errors]
            errors.clear()
    with window(chromium, java_script_enabled=False) as (page, _):
        for url in shown[:without_javascript]:
            page.goto(f"{pages.url}{url}")
            if not page.locator("main h1").is_visible() or page.locator("#banner").is_visible():
                problems.append(f"{url}: shows nothing without JavaScript")
    assert problems == [], "\n".join(problems)
