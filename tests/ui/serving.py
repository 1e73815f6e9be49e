"""Serve pages, and drive runs, in a thread beside a test that drives a browser."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.from_thread

from effectflow.service import App, Client, Worker
from effectflow.ui import create_app
from effectflow.ui.server import PageServer


@dataclass(frozen=True)
class Served:
    """Pages that are served, and what a test does in their event loop.

    Attributes:
        url: where the pages are.
        client: a client of the same store. Call its methods by `do`.
    """

    url: str
    client: Client
    do: Callable[..., Any]


@contextmanager
def served(app: App[Any], *, worker: bool = True, **options: Any) -> Iterator[Served]:
    """Serve the pages of an App, beside a worker that drives its runs.

    `served.do(client.submit, order, 5)` calls an async function beside them.
    """
    pages = create_app(app, app, **options)
    server = PageServer(pages, pages.state.feeds)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(app)) as client,
    ):
        if worker:
            with portal.wrap_async_context_manager(Worker(app)):
                yield from _serve(portal, server, listener, client)
        else:
            yield from _serve(portal, server, listener, client)


def _serve(portal: Any, server: PageServer, listener: Any, client: Client) -> Iterator[Served]:
    serving = portal.start_task_soon(server.serve, [listener])
    port = listener.getsockname()[1]

    def do(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        async def call() -> Any:
            return await function(*arguments, **keywords)

        return portal.call(call)

    try:
        yield Served(f"http://127.0.0.1:{port}", client, do)
    finally:
        server.should_exit = True
        serving.result()
