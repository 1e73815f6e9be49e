"""What all pages share: the store, the App, and how a page is rendered, once or whenever it changes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from effectflow.checkpoint import CheckpointError, RunInfo, RunNotFound, StoreUnavailable
from effectflow.effects.clock import Clock, SystemClock
from effectflow.observe.recent_runs import RecentRuns
from effectflow.service import App, Client
from effectflow.ui.live import EventStream, Feeds, State
from effectflow.ui.notices import NOTICES
from effectflow.ui.rendering import rendered
from effectflow.ui.store_access import StoreAccess

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows.

    Attributes:
        template: the file in `templates`.
        title: the title of the window.
        values: what the template shows.
        status: the HTTP status.
        run: the run that it is about, whose changes renew it; None if any run may change it.
    """

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    status: int = 200
    run: RunInfo | None = None


Handler: TypeAlias = Callable[["Site", Request], Awaitable[Page | Response]]
"""Answers a request with a page, or with another response, such as a redirection."""


class Refused(Exception):
    """A request that the pages do not serve. Its text says why, and what to do."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Site:
    """The pages of a store.

    Attributes:
        client: reads and changes the runs.
        app: the App whose workflows they are; None if the pages only show what the store has.
        read_only: whether nothing may be changed, whatever the store allows.
        clock: tells the time.
    """

    client: Client
    app: App[Any] | None
    read_only: bool
    clock: Clock = field(default_factory=SystemClock)

    @cached_property
    def feeds(self) -> Feeds:
        """The pages that browsers watch."""
        return Feeds(self.client.checkpoints.store)

    @cached_property
    def access(self) -> StoreAccess:
        """Opens the store."""
        return StoreAccess(self.client.checkpoints.store)

    @cached_property
    def recent_runs(self) -> RecentRuns:
        """Reads runs."""
        return RecentRuns(self.client.checkpoints)

    @property
    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self.clock.now().timestamp()

    def changeable(self) -> App[Any]:
        """Return the App. Raise Refused if the pages only show."""
        if self.app is None:
            raise Refused("These pages only show. Serve them with --app to change runs.", 403)
        if self.read_only:
            raise Refused("These pages are read-only.", 403)
        if self.access.obstacle:
            raise Refused(f"The store of these pages {self.access.obstacle}.", 403)
        return self.app

    @property
    def _can_change(self) -> bool:
        return self.app is not None and not self.read_only and not self.access.obstacle

    def link(self, request: Request, path: str, /, **query: object) -> str:
        """Return the URL of a page, wherever the pages are mounted. Leave out what is None."""
        given = [(name, value) for name, value in query.items() if value is not None]
        text = f"?{urlencode(given, doseq=True, errors='replace')}" if given else ""
        return f"{request.scope.get('root_path', '').rstrip('/')}{path}{text}"

    def redirect(self, request: Request, path: str, /, **query: object) -> Response:
        """Return a redirection to a page, after a form has been handled."""
        return RedirectResponse(self.link(request, path, **query), status_code=303)

    def render(self, request: Request, page: Page, *, only_main: bool = False) -> str:
        """Return the HTML of a page; of its changing part only, if asked."""

        def link(path: str, **query: object) -> str:
            return self.link(request, path, **query)

        return rendered(
            page.template,
            {
                "layout": "main.html" if only_main else "layout.html",
                "site": self,
                "here": request.url.path.removeprefix(request.scope.get("root_path", "")),
                "url": request.url,
                "title": page.title,
                "link": link,
                "notice": NOTICES.get(request.query_params.get("done", "")),
                "by": self.client.by,
                "can_change": self._can_change,
                **page.values,
            },
        )

    async def answer(self, request: Request, handler: Handler) -> Response:
        """Answer a request: with a page, or with a stream of its states for one who watches it."""
        is_watching = "text/event-stream" in request.headers.get("accept", "")
        if is_watching and request.method == "GET":
            return EventStream(self.feeds, str(request.url), lambda: self._state(request, handler))
        page, html = await self._rendered(request, handler)
        if isinstance(page, Response):
            return page
        # What cannot be encoded is no part of a text that someone could read.
        return HTMLResponse(html.encode(errors="replace"), status_code=page.status)

    async def _state(self, request: Request, handler: Handler) -> State:
        """Return what a watched page shows now."""
        page, html = await self._rendered(request, handler, only_main=True)
        if isinstance(page, Response):
            return State("")
        if page.status != 200:
            return State("", f"{page.title}: {page.values['text']}")
        return State(html, run=page.run)

    async def _rendered(
        self, request: Request, handler: Handler, *, only_main: bool = False
    ) -> tuple[Page | Response, str]:
        """Return the page of a request with its HTML, or another response. Errors of ours are logged."""
        try:
            page = await self._page_of(request, handler)
            is_page = isinstance(page, Page)
            return page, self.render(request, page, only_main=only_main) if is_page else ""
        except (Exception, SystemExit):
            # Code of the App may raise what would end the process.
            logger.exception("the pages have failed to show %s", request.url.path)
            page = problem_page("The pages have failed", "See the log of their server.", 500)
            return page, self.render(request, page, only_main=only_main)

    async def _page_of(self, request: Request, handler: Handler) -> Page | Response:
        """Return the page of a request; one that says why, if there is none."""
        try:
            async with self.access.opened():
                return await handler(self, request)
        except Refused as error:
            return problem_page("This is not possible", str(error), error.status)
        except RunNotFound as error:
            similar = f" {error.hint}" if error.nearest else ""
            return problem_page("There is no such run", f"There is {error.problem}.{similar}", 404)
        except StoreUnavailable as error:
            return problem_page("The store does not answer", str(error), 503)
        except CheckpointError as error:
            return problem_page("This is not possible", str(error), 409)


def problem_page(title: str, text: str, status: int) -> Page:
    """Return a page that says what is wrong."""
    return Page("problem.html", title, {"text": text}, status)
