from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient

from effectflow import Checkpoints, Do, Effect, pure, step, workflow
from effectflow.service import App, publish
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.ui import create_app
from tests.ui.serving import Served
from tests.ui.small_app import Environment


@dataclass(frozen=True)
class Basket:
    items: tuple[str, ...]
    total: int


@step
def add(basket: Basket, item: str) -> Effect[object, str, Basket]:
    return pure(Basket((*basket.items, item), basket.total + len(item)))


@workflow
def shopping(items: list[str]) -> Do[Environment, str, Basket]:
    basket = Basket((), 0)
    for item in items:
        basket = yield from add(basket, item)
        yield from publish("total", basket.total)
    return basket


def pages_of(items: list[str]) -> TestClient:
    """Return the pages of a store with the complete run `shopping-1`."""
    checkpoints = Checkpoints(MemoryStore())
    shopping.start(items, run_id="shopping-1").run_sync(Environment(checkpoints))
    return TestClient(create_app(checkpoints))


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))


def test_the_history_shows_what_an_entry_has_changed() -> None:
    with pages_of(["cap", "shoe"]) as pages:
        # Its entries: Started, then three for each item, then Finished.
        shown = text_of(pages.get("/run/history?id=shopping-1&at=6").text)
    assert "6 of 8" in shown
    assert "step add#2 'running' 'completed'" in shown
    assert "state.items[1] none 'shoe'" in shown
    assert "state.total 3 7" in shown


def test_two_entries_are_compared() -> None:
    with pages_of(["cap", "shoe"]) as pages:
        shown = text_of(pages.get("/run/history?id=shopping-1&at=7&since=4").text)
    assert "published total 3 7" in shown
    assert "output of add#2 none Basket(items=('cap', 'shoe'), total=7)" in shown


def test_the_state_is_that_after_the_chosen_entry() -> None:
    with pages_of(["cap", "shoe"]) as pages:
        shown = text_of(pages.get("/run/history?id=shopping-1&at=5").text)
    assert "Completed steps 1" in shown
    assert "In progress add#2 running" in shown
    assert "State Basket(items=('cap',), total=3)" in shown


def test_a_long_history_has_pages() -> None:
    with pages_of(["cap"] * 100) as pages:
        html = pages.get("/run/history?id=shopping-1&at=150").text
        # The chosen entry can be seen without scrolling.
        assert "Entries 142 to 241" in html
        assert html.count("<li id=") == 100
        later = re.search(r'href="([^"]+)">Later entries', html)
        assert later is not None
        assert "Entries 203 to 302" in pages.get(unescape(later[1])).text


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("id=shopping-1&at=x", 400, "at is a number"),
        ("id=shopping-1&at=999", 200, "5 of 5"),
        ("id=shopping-1&since=%F0%9F%98%80", 400, "since is a number"),
        ("id=nobody", 404, "no run 'nobody'"),
        ("", 400, "Say which run"),
    ],
)
def test_what_has_no_history_is_explained(query: str, status: int, words: str) -> None:
    with pages_of(["cap"]) as pages:
        answer = pages.get(f"/run/history?{query}")
    assert (answer.status_code, words in text_of(answer.text)) == (status, True)


def test_the_slider_travels_in_time(
    window: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    checkpoints = Checkpoints(SqliteStore(tmp_path / "runs.db"))
    pages = serve(App([shopping], environment=Environment, checkpoints=checkpoints))
    handle = pages.do(pages.client.submit, shopping, ["cap", "shoe"], run_id="shopping-1")
    pages.do(handle.result)
    window.goto(f"{pages.url}/run/history?id=shopping-1")
    slider = window.get_by_role("slider", name="Entry")
    slider.press("ArrowLeft")
    expect(window).to_have_url(re.compile("at=8"))
    expect(window.get_by_text("published total", exact=True)).to_be_visible()
    window.get_by_role("link", name="Started").click()
    expect(window.get_by_role("heading", name="The run after entry 1", exact=True)).to_be_visible()
