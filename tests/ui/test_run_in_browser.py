from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from effectflow import App, Checkpoints, Do, Effect, Signal, SqliteStore, pure, step, workflow
from tests.ui.serving import Served
from tests.ui.small_app import Environment

approval = Signal("approval", bool)


@step
def charge(price: int) -> Effect[object, str, int]:
    return pure(price)


@workflow
def order(price: int) -> Do[Environment, str, int]:
    yield from charge(price)
    yield from approval.wait()
    return (yield from charge(2 * price))


_DRAG = """(end) => {
  const scale = document.querySelector("th.time");
  const { left, top, width } = scale.getBoundingClientRect();
  const at = (share) => ({ clientX: left + share * width, clientY: top + 1, bubbles: true });
  scale.dispatchEvent(new PointerEvent("pointerdown", at(0.2)));
  scale.dispatchEvent(new PointerEvent("pointermove", at(0.6)));
  scale.dispatchEvent(new PointerEvent(end, at(0.6)));
}"""


def test_the_steps_of_a_run_appear_as_a_worker_drives_it_and_keys_zoom_into_their_time(
    window: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    checkpoints = Checkpoints(SqliteStore(tmp_path / "runs.db"))
    app = App([order], environment=Environment, checkpoints=checkpoints)
    pages = serve(app)
    handle = pages.do(pages.client.submit, order, 5, run_id="order-1")
    window.goto(f"{pages.url}/run?id=order-1")
    steps = window.get_by_role("region", name="Steps and their times")
    expect(steps.get_by_role("rowheader")).to_have_text(["This run", "charge", "signal:approval"])
    window.get_by_text("Commands that would move it").click()
    steps.focus()
    pages.do(handle.send, approval, True)
    expect(steps.get_by_role("rowheader")).to_have_text(
        ["This run", "charge", "signal:approval", "charge#2"]
    )
    # What the reader has opened and chosen stays.
    expect(window.get_by_text("effectflow rerun order-1")).to_be_visible()
    expect(steps).to_be_focused()
    window.keyboard.press("+")
    expect(window.get_by_role("link", name="Zoom out")).to_be_visible()
    expect(steps).to_be_focused()
    window.keyboard.press("0")
    expect(window.get_by_role("link", name="Zoom out")).not_to_be_visible()
    # A finger that scrolls chooses no part of the time, as a drag does.
    window.evaluate(_DRAG, "pointercancel")
    assert window.locator(".selection").count() == 0
    window.evaluate(_DRAG, "pointerup")
    expect(window.get_by_role("link", name="Zoom out")).to_be_visible()
    window.keyboard.press("0")
    steps.get_by_role("link", name="charge", exact=True).click()
    expect(window.get_by_role("heading", name="charge", exact=True)).to_be_in_viewport()


def test_a_narrow_screen_shows_the_bars_beside_the_names(
    window: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    checkpoints = Checkpoints(SqliteStore(tmp_path / "runs.db"))
    pages = serve(App([order], environment=Environment, checkpoints=checkpoints))
    pages.do(pages.client.submit, order, 5, run_id="order-1")
    window.set_viewport_size({"width": 360, "height": 740})
    window.goto(f"{pages.url}/run?id=order-1")
    row = window.get_by_role("row").filter(has_text="signal:approval")
    state = row.get_by_text("waiting", exact=True)
    expect(state).to_be_visible()
    for part in (row.get_by_role("link").first, state, row.locator("svg")):
        box = part.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
        assert box["width"] > 50
