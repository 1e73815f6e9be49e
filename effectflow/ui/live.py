"""Pages that renew themselves: a browser watches a URL, and gets the page again whenever it differs.

All browsers that watch one URL share one feed, which renders the page once for all of them. Browsers cost
workers nothing: a feed only reads the store.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from effectflow.checkpoint.errors import CheckpointError, StoreUnavailable
from effectflow.checkpoint.notifications import Wakeup, watching
from effectflow.checkpoint.run_info import RunInfo
from effectflow.checkpoint.store import CheckpointStore, find_run, is_service
from effectflow.effects.event_loop import PerEventLoop, spawn_background

logger = logging.getLogger(__name__)

SECONDS_BETWEEN = 1.0
"""A page is rendered at most this often."""

_SHARE = 4
"""A page that takes long to render is rendered for at most this fraction of the time (one in 4)."""

_SECONDS_UNTIL_LOOK = 5.0
"""A page is rendered again after this time, also if no change became known."""

_SECONDS_TO_ANSWER = 5.0
"""The time for a page, after which its readers are told that the store does not answer."""

_MOST_AT_ONCE = 8
"""How many pages are rendered at the same time. When all browsers connect again after a restart, each
page would otherwise take as long as all of them, and seem to get no answer."""

_SECONDS_UNTIL_SIGN = 15.0
"""After this time without a change, a comment keeps the connection alive."""

_SIGN = b":\n\n"

_RETRY = b"retry: 1000\n\n"
"""Tells a browser to connect again after this many milliseconds."""


@dataclass(frozen=True, slots=True)
class State:
    """What a watched page shows.

    Attributes:
        main: its changing part, as HTML.
        problem: why it cannot be shown now, in words; "" if it can.
        run: the run that it is about; None if any run may change it.
    """

    main: str
    problem: str = ""
    run: RunInfo | None = None


Render: TypeAlias = Callable[[], Awaitable[State]]


class Feeds:
    """The pages that are watched, by their URLs."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._feeds: dict[str, _Feed] = {}
        self._has_ended = False

    def end(self) -> None:
        """End all streams, because the server shuts down: it waits for them."""
        self._has_ended = True
        for feed in self._feeds.values():
            feed.changed.set()

    async def watch(self, url: str, render: Render) -> AsyncGenerator[bytes]:
        """Yield the page as an event, again whenever it differs, and from time to time a comment."""
        feed = self._feeds.get(url)
        if feed is None:
            feed = self._feeds[url] = _Feed(render)
            spawn_background(lambda: feed.run(self._store))
        feed.watchers += 1
        known = b""
        try:
            while not self._has_ended:
                changed = feed.changed
                if feed.event != known:
                    known = feed.event
                    yield known
                    continue
                with anyio.move_on_after(_SECONDS_UNTIL_SIGN) as waiting:
                    await changed.wait()
                if waiting.cancelled_caught:
                    yield _SIGN
        finally:
            feed.watchers -= 1
            if not feed.watchers:
                self._feeds.pop(url, None)
                feed.scope.cancel()


@dataclass(slots=True)
class _Feed:
    """A page that is rendered again whenever it may have changed, until nobody watches it.

    Attributes:
        render: renders it.
        watchers: how many browsers watch it.
        event: what it shows, as all of them receive it; empty before it is known.
        shown: the run that it shows; None if any run may change it.
        changed: set when there is another event.
        scope: what it is rendered in.
    """

    render: Render
    watchers: int = 0
    event: bytes = b""
    shown: RunInfo | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def run(self, store: CheckpointStore) -> None:
        """Render the page until nobody watches it."""
        with self.scope:
            while True:
                try:
                    # Before the watch, which many readers do not stay for.
                    await self._renew()
                    await self._renew_at_changes(store)
                except StoreUnavailable:
                    # The page says so.
                    continue
                except Exception:
                    # The pages are rendered again nevertheless: whoever watches waits for that.
                    logger.exception("a page that is watched cannot be renewed")
                    await anyio.sleep(_SECONDS_UNTIL_LOOK)

    async def _renew_at_changes(self, store: CheckpointStore) -> None:
        """Render the page whenever it may have changed, for as long as it is about the same run."""
        run_id, woken = self._run_id, Wakeup()
        async with store, AsyncExitStack() as stack:
            if is_service(store):
                await stack.enter_async_context(watching(store, run_id, woken.set))
            while self._run_id == run_id:
                await self._renew()
                with anyio.move_on_after(_SECONDS_UNTIL_LOOK):
                    await woken.wait()
                    # Some stores cannot tell which runs have changed.
                    while await self._is_unchanged(store):
                        await anyio.sleep(SECONDS_BETWEEN)
                        await woken.wait()

    @property
    def _run_id(self) -> str | None:
        return None if self.shown is None else self.shown.run_id

    async def _is_unchanged(self, store: CheckpointStore) -> bool:
        if self.shown is None:
            return False
        # What is wrong is told by the page.
        with suppress(CheckpointError):
            return await find_run(store, self.shown.run_id) == self.shown
        return False

    async def _renew(self) -> None:
        """Render the page, show it if it differs, and rest."""
        state = State("", f"The store has not answered for {_SECONDS_TO_ANSWER:g} s.")
        async with _rendering.get():
            began = anyio.current_time()
            with anyio.move_on_after(_SECONDS_TO_ANSWER):
                state = await self.render()
            took = anyio.current_time() - began
        if not state.problem:
            self.shown = state.run
        # Once for all who watch.
        event = _event(state)
        if event != self.event:
            self.event = event
            self.changed.set()
            self.changed = anyio.Event()
        await anyio.sleep(max(SECONDS_BETWEEN, (_SHARE - 1) * took))


_rendering = PerEventLoop(partial(anyio.CapacityLimiter, _MOST_AT_ONCE))


class EventStream(Response):
    """A page that is watched, as server-sent events: `page` with its HTML, or `problem` with why not."""

    media_type = "text/event-stream"

    def __init__(self, feeds: Feeds, url: str, render: Render) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = feeds.watch(url, render)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the browser has gone."""

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group, aclosing(self._events) as events:
            group.start_soon(until_gone)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": _RETRY, "more_body": True})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            group.cancel_scope.cancel()


def _event(state: State) -> bytes:
    name, text = ("problem", state.problem) if state.problem else ("page", state.main)
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n".encode(errors="replace")
