"""Runs in every state, and a client of the pages that steers them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from decimal import Decimal
from html import unescape
from typing import Any

import anyio
from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from effectflow import RunStatus, Workflow
from effectflow.service import App, Client, Worker
from effectflow.ui import create_app
from tests.ui.controls import SubmittedForm, forms_in
from tests.ui.orders import Order

HAT = Order("hat", Decimal("5.50"))


@dataclass
class Answered:
    """A page that was shown."""

    status: int
    html: str
    address: str

    @property
    def text(self) -> str:
        """What people read on it."""
        main = self.html.partition("<main")[2]
        return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", main)))

    @property
    def code(self) -> str:
        """The text to copy."""
        return unescape(self.html.partition("<pre")[2].partition(">")[2].partition("</pre>")[0])

    @property
    def forms(self) -> list[SubmittedForm]:
        return forms_in(self.html)


@dataclass
class Steering:
    """The pages of an App, as people use them without a browser."""

    app: App[Any]
    pages: TestClient = field(init=False)

    def __post_init__(self) -> None:
        self.pages = TestClient(create_app(self.app, self.app), follow_redirects=False)

    def show(self, address: str) -> Answered:
        answer = self.pages.get(address)
        return Answered(answer.status_code, answer.text, address)

    def act(
        self,
        name: str,
        run_id: str,
        /,
        number: int = 0,
        query: str = "",
        *,
        typed: Mapping[str, str] = {},
    ) -> Answered:
        """Open the page of an action, fill in its form, and submit it."""
        page = self.show(f"/run/act/{name}?id={run_id}{query}")
        assert page.status == 200, page.text
        return self.submit(page, page.forms[number].typed | dict(typed))

    def submit(self, page: Answered, typed: dict[str, str]) -> Answered:
        answer = self.pages.post(page.address, data=typed)
        return Answered(answer.status_code, answer.text, answer.headers.get("location", ""))

    def do(self, workflow: Workflow[Any, Any, Any, Any], *run_ids: str, input: Any = HAT) -> None:
        """Submit runs."""

        async def submit() -> None:
            async with Client(self.app) as client:
                for run_id in run_ids:
                    await client.submit(workflow, input, run_id=run_id)

        _run(submit)

    def drive(self, workflow: Workflow[Any, Any, Any, Any], run_id: str, until: RunStatus) -> Any:
        """Let a worker drive a run until it has this status. Return its output if it is complete."""

        async def main() -> Any:
            async with Client(self.app) as client, Worker(self.app, suspend_after=0):
                handle = client.handle(workflow, run_id)
                with anyio.fail_after(20):
                    if until is RunStatus.COMPLETED:
                        return (await handle.result()).unwrap()
                    async with aclosing(handle.changes()) as changes:
                        async for change in changes:
                            if change.status is until:
                                return until
            raise AssertionError(f"run {run_id!r} has ended without being {until}")

        return _run(main)

    def status(self, workflow: Workflow[Any, Any, Any, Any], run_id: str) -> RunStatus:
        async def main() -> RunStatus:
            async with Client(self.app) as client:
                return await client.handle(workflow, run_id).status()

        return _run(main)


def _run(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run an async function beside an event loop that a browser may have in this thread."""
    with start_blocking_portal() as portal:
        return portal.call(main)
