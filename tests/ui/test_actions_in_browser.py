"""The stories of actions, in a browser, on runs that workers drive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from effectflow import Checkpoints, RunStatus
from effectflow.stores import SqliteStore
from tests.programs import Program
from tests.ui import orders
from tests.ui.orders import BROKEN, buy, fulfil
from tests.ui.serving import Served
from tests.ui.steered import Steering


@pytest.fixture
def steering(tmp_path: Path) -> Iterator[Steering]:
    BROKEN.clear()
    yield Steering(orders.app_on(Checkpoints(SqliteStore(tmp_path / "runs.db"))))
    BROKEN.clear()


def tab_to(window: Page, *names: str) -> None:
    """Press Tab until what has one of these names has the focus."""
    for _ in range(60):
        window.keyboard.press("Tab")
        focused = window.evaluate(_FOCUSED)
        if not {*names}.isdisjoint(focused):
            return
    raise AssertionError(f"Tab does not reach {names}")


_FOCUSED = """() => {
    const one = document.activeElement;
    const labels = [...(one.labels ?? [])].map((label) => label.innerText);
    return [one.ariaLabel, one.innerText, ...labels].map((text) => (text ?? "").trim());
}"""


def test_an_approval_is_answered_by_keyboard_alone(
    window: Page, serve: Callable[..., Served], steering: Steering
) -> None:
    steering.do(fulfil, "order-1")
    steering.drive(fulfil, "order-1", RunStatus.SUSPENDED)
    pages = serve(steering.app)
    window.goto(f"{pages.url}/run?id=order-1")
    tab_to(window, "Send a signal", "Send approval")
    window.keyboard.press("Enter")
    expect(window.get_by_role("heading", level=1)).to_have_text("Send a signal")
    tab_to(window, "yes")
    window.keyboard.press("Space")
    tab_to(window, "by")
    window.keyboard.type("emma")
    tab_to(window, "Send approval")
    window.keyboard.press("Enter")
    expect(window.get_by_role("status").filter(has_text="sent")).to_be_visible()
    expect(window.locator(".lead")).to_contain_text("completed")


def test_an_unknown_outcome_is_settled_after_the_worker_was_killed(
    window: Page, serve: Callable[..., Served], steering: Steering, tmp_path: Path
) -> None:
    steering.do(buy, "order-1")
    with Program(["-c", _KILLED_WORKER, str(tmp_path / "runs.db")]) as worker:
        assert worker.wait(30) == -9
    pages = serve(steering.app)
    window.goto(f"{pages.url}/run?id=order-1")
    resume = "A resume would keep the 1 completed step, once it is known what became of charge."
    expect(window.locator("#resume")).to_have_text(resume)
    unknown = window.locator("#unknown")
    expect(unknown).to_contain_text("order-1:charge")
    unknown.get_by_role("link", name="it happened, complete it").click()
    expect(window.locator(".before")).to_contain_text("order-1:charge")
    window.get_by_label("Output of the step").fill("5.50 paid, says the bank")
    window.get_by_role("button", name="Complete the step").click()
    expect(window.locator(".lead")).to_contain_text("completed")
    [output] = [pages.do(pages.client.handle(buy, "order-1").result)]
    assert output.unwrap() == "hat reserved, 5.50 paid, says the bank"


_KILLED_WORKER = """
import sys
import anyio
from effectflow import Checkpoints
from effectflow.service import Worker
from effectflow.stores import SqliteStore
from tests.ui import orders

async def main():
    orders.BROKEN.add("killed")
    async with Worker(orders.app_on(Checkpoints(SqliteStore(sys.argv[1])))):
        await anyio.sleep(30)

anyio.run(main)
"""


def test_a_fork_with_an_edited_output_goes_on_from_there(
    window: Page, serve: Callable[..., Served], steering: Steering
) -> None:
    BROKEN.add("charge")
    steering.do(buy, "order-1")
    steering.drive(buy, "order-1", RunStatus.FAILED)
    BROKEN.clear()
    pages = serve(steering.app)
    window.goto(f"{pages.url}/run?id=order-1")
    window.get_by_role("link", name="Fork", exact=True).click()
    window.get_by_role("link", name="Give reserve another output").click()
    output = window.get_by_label("Output of reserve")
    expect(output).to_have_value("hat reserved")
    output.fill("two hats reserved")
    window.get_by_label("Id of the new run").fill("order-2")
    window.get_by_role("button", name="Fork the run").click()
    expect(window.get_by_role("heading", level=1)).to_have_text("order-2")
    expect(window.locator(".lead")).to_contain_text("completed")
    ended = pages.do(pages.client.handle(buy, "order-2").result)
    assert ended.unwrap() == "two hats reserved, 5.50 paid"


def test_a_run_is_started_without_javascript(
    chromium: Browser, serve: Callable[..., Served], steering: Steering
) -> None:
    pages = serve(steering.app)
    context = chromium.new_context(java_script_enabled=False)
    context.set_default_timeout(10_000)
    window = context.new_page()
    window.goto(pages.url)
    window.get_by_role("link", name="Start a run").click()
    window.get_by_label("Workflow").select_option("hold")
    window.get_by_role("button", name="Continue").click()
    window.get_by_label("item").fill("hat")
    window.get_by_label("price").fill("much")
    window.get_by_label("Run id").fill("order-1")
    window.get_by_role("button", name="Start the run").click()
    expect(window.get_by_label("price")).to_have_value("much")
    expect(window.locator("strong.problem")).to_contain_text("decimal")
    window.get_by_role("button", name="Input as JSON").click()
    window.get_by_label("Input").fill('{"item": "hat", "price": "5.50"}')
    window.get_by_role("button", name="Start the run").click()
    expect(window.get_by_role("heading", level=1)).to_have_text("order-1")
    pages.do(pages.client.handle(orders.hold, "order-1").result)
    window.reload()
    expect(window.locator(".lead")).to_contain_text("completed")
    context.close()
