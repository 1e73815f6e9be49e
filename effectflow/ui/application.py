"""The ASGI application with all pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from effectflow.checkpoint.checkpoints import Checkpoints, HasCheckpoints
from effectflow.service import App, Client
from effectflow.ui.action_page import do_action, show_action
from effectflow.ui.bulk_page import act_on_runs, show_none
from effectflow.ui.data_page import download, show_data
from effectflow.ui.drawing_page import show_drawing
from effectflow.ui.history_page import show_history
from effectflow.ui.protection import Protected
from effectflow.ui.rendering import compile_templates
from effectflow.ui.run_page import show_run
from effectflow.ui.runs_page import list_runs
from effectflow.ui.service_page import change_pause, show_pause, show_service
from effectflow.ui.site import Handler, Site
from effectflow.ui.start_page import do_start, show_start
from effectflow.ui.store_page import show_store


def create_app(
    checkpoints: Checkpoints | HasCheckpoints,
    app: App[Any] | None = None,
    *,
    read_only: bool = False,
    token: str = "",
    hosts: Collection[str] = (),
    by: str | None = None,
) -> Starlette:
    """Return an ASGI application with pages that show runs, and with an App change them.

    Mount it anywhere in another application, behind that one's own login. It executes nothing: workers
    drive the runs. Mounted, it opens the store for each request unless your program keeps it open, as
    `async with Client(checkpoints)` in your lifespan does.

    Parameters:
        checkpoints: where the runs are; or what has them as `checkpoints`, such as an App.
        app: the App of the workers. Without it, the pages only show what the store has.
        read_only: whether to only show. The pages of a store that can only be read, or that workers
            cannot use, only show, too.
        token: what a visitor has to know; "" if whoever reaches the pages may use them.
        hosts: the names under which a browser may reach the pages, such as "runs.example.org"; by
            default any. Without a token or a login, name them, even on this host alone: the name of
            another site may lead a browser here, and its scripts would then read the pages.
        by: who changes runs, for their journals; by default the user of this process and the host.

    Example:
        >>> from effectflow import Checkpoints
        >>> from effectflow.stores import MemoryStore
        >>> from starlette.testclient import TestClient
        >>> pages = create_app(Checkpoints(MemoryStore()))
        >>> TestClient(pages).get("/").status_code
        200
    """
    client = Client(checkpoints, by=by)
    site = Site(client, app, read_only)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        compile_templates()
        async with client:
            yield

    pages = Starlette(
        routes=[
            _route("/", site, list_runs),
            _route("/bulk", site, show_none, act_on_runs),
            _route("/run", site, show_run),
            _route("/run/act/{name}", site, show_action, do_action),
            _route("/start", site, show_start, do_start),
            _route("/run/history", site, show_history),
            _route("/run/data", site, show_data),
            _route("/run/drawing", site, show_drawing),
            _route("/run/download", site, download),
            _route("/service", site, show_service),
            _route("/service/pause", site, show_pause, change_pause),
            _route("/store", site, show_store),
            Mount("/static", StaticFiles(packages=[("effectflow.ui", "static")])),
        ],
        middleware=[Middleware(Protected, token=token, hosts=hosts)],
        lifespan=lifespan,
    )
    pages.state.feeds = site.feeds
    return pages


def _route(path: str, site: Site, show: Handler, change: Handler | None = None) -> Route:
    """Return the route of a page, and of the form on it that changes something."""

    async def answer(request: Request) -> Response:
        handler = change if request.method == "POST" and change is not None else show
        return await site.answer(request, handler)

    return Route(path, answer, methods=["GET"] if change is None else ["GET", "POST"])
