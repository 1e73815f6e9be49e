"""The server of `effectflow ui`."""

from __future__ import annotations

import gc
import socket

import uvicorn
from starlette.types import ASGIApp

from effectflow.ui.live import Feeds


class PageServer(uvicorn.Server):
    """A server that ends the streams of watched pages first when it shuts down.

    Parameters:
        pages: the application.
        feeds: the pages that browsers watch.
    """

    def __init__(self, pages: ASGIApp, feeds: Feeds) -> None:
        # The bound is for browsers that read too slowly.
        super().__init__(uvicorn.Config(pages, log_level="warning", timeout_graceful_shutdown=5))
        self._feeds = feeds

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal ends the process."""
        # A long run is many small objects and no garbage. To look for it took a third of the time.
        gc.freeze()
        gc.set_threshold(250_000)
        super().run(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, and then what else is in progress."""
        self._feeds.end()
        await super().shutdown(sockets)
