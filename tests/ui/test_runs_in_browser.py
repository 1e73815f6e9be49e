"""The page of runs in a browser: it renews itself, and the keyboard selects runs and acts on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from effectflow import App, Checkpoints, Do, Effect, fail, step, workflow
from effectflow.stores import SqliteStore
from tests.ui.serving import Served
from tests.ui.small_app import Declined, Environment, order, small_app


def test_runs_are_selected_by_keyboard_and_stay_so_while_others_appear(
    window: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    pages = serve(small_app(SqliteStore(tmp_path / "runs.db")))
    for number in range(3):
        pages.do(pages.client.submit, order, -1, run_id=f"bad-{number}")
    window.goto(f"{pages.url}/?status=failed")
    box = window.get_by_label("Select bad-1")
    expect(window.get_by_label("Select bad-0")).to_be_visible()
    expect(window.get_by_label("Select bad-2")).to_be_visible()
    box.focus()
    window.keyboard.press("Space")
    # A run that appears later takes neither the focus nor the selection.
    pages.do(pages.client.submit, order, -1, run_id="bad-3")
    expect(window.get_by_label("Select bad-3")).to_be_visible()
    expect(box).to_be_checked()
    expect(box).to_be_focused()
    expect(window.get_by_text("With the selected runs (1)")).to_be_visible()
    window.get_by_label("all on this page").focus()
    window.keyboard.press("Space")
    expect(window.get_by_text("With the selected runs (4)")).to_be_visible()
    assert not Axe().run(window).response["violations"]
    window.get_by_role("button", name="Delete…").press("Enter")
    expect(window.get_by_role("row")).to_have_count(5)
    assert not Axe().run(window).response["violations"]
    window.get_by_role("button", name="Delete 4 runs").press("Enter")
    expect(window.get_by_role("heading", level=1)).to_have_text("4 of 4 runs were deleted")
    # Neither a reload nor the way back sends the form again, once the script of the page has run.
    window.wait_for_load_state()
    window.reload()
    expect(window.get_by_text("No run matches.")).to_be_visible()
    assert window.url == f"{pages.url}/?status=failed"
    window.go_back()
    expect(window.get_by_role("heading", level=1)).to_have_text("Runs")
    assert window.url == f"{pages.url}/?status=failed"


def test_without_javascript_and_at_360_pixels(
    window: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    pages = serve(small_app(SqliteStore(tmp_path / "runs.db")), worker=False)
    pages.do(pages.client.submit, order, 1, run_id="order-with-a-rather-long-id-as-some-have-1")
    pages.do(pages.client.submit, order, 2, run_id="other-2")
    browser = window.context.browser
    assert browser is not None
    context = browser.new_context(
        java_script_enabled=False,
        viewport={"width": 360, "height": 800},
        accept_downloads=True,
    )
    narrow = context.new_page()
    narrow.goto(pages.url)
    narrow.get_by_label("Id begins with").fill("order")
    narrow.get_by_label("Id begins with").press("Enter")
    expect(narrow.get_by_role("row")).to_have_count(2)
    assert narrow.url.endswith("/?prefix=order")
    main = narrow.locator("main").bounding_box()
    assert main is not None
    assert main["width"] <= 360
    narrow.get_by_label("all on this page").check()
    narrow.get_by_role("button", name="Export…").click()
    with narrow.expect_download() as download:
        narrow.get_by_role("button", name="Export 1 run").click()
    assert download.value.suggested_filename == "runs.jsonl.gz"
    context.close()


@step(name="long" * 150)
def long(_: int) -> Effect[object, Declined, int]:
    return fail(Declined("because" * 100))


@workflow
def fails(number: int) -> Do[Environment, Declined, int]:
    return (yield from long(number))


def test_long_names_make_no_page_wider_than_the_screen(
    window: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    checkpoints, run_id = Checkpoints(SqliteStore(tmp_path / "runs.db")), "r" * 180
    pages = serve(App([fails], environment=Environment, checkpoints=checkpoints))
    handle = pages.do(pages.client.submit, fails, 1, run_id=run_id)
    pages.do(handle.result, 10)
    window.goto(pages.url)
    # The last column is on the screen, too.
    updated = window.get_by_role("row").filter(has_text="failed").get_by_role("cell").last
    box = updated.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 1280
    window.set_viewport_size({"width": 360, "height": 740})
    paths = ("run", "run/history", "run/data", "run/drawing", "run/act/fork", "run/act/retry")
    for path in paths:
        window.goto(f"{pages.url}/{path}?id={run_id}")
        assert window.evaluate("document.documentElement.scrollWidth") <= 360, path
