"""`effectflow ui`: serve the pages, in which people see and steer runs."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import Annotated, Any

import anyio
import typer

from effectflow.checkpoint import Checkpoints, CheckpointStore
from effectflow.cli.access import Access
from effectflow.cli.app_loader import app_of_runs, app_of_workflows
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse
from effectflow.cli.render import say
from effectflow.effects.imports import needs
from effectflow.service import App

try:
    with needs("ui"):
        from effectflow.ui import create_app
        from effectflow.ui.server import PageServer
except ModuleNotFoundError as missing:
    raise BadUse(str(missing)) from missing

_LOCAL = ("127.0.0.1", "localhost", "::1")
"""The hosts that only this machine reaches."""

_NEW = "new"


@command(None)
def ui(
    access: Access,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:APP",
            help="The App whose runs they are, to change and start runs. Without --store, it also says "
            "where they are.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Others than this host need a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; with 0, it is chosen.")
    ] = 8643,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="EFFECTFLOW_UI_TOKEN",
            help="What a visitor has to know; `new` makes one. Better in EFFECTFLOW_UI_TOKEN, because "
            "other users see arguments.",
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only show; also with an App.")
    ] = False,
) -> Answer:
    """Serve pages in which people see and steer runs, until Ctrl-C."""
    secret = secrets.token_urlsafe(24) if token == _NEW else token or ""
    if host not in _LOCAL and len(secret) < 16:
        raise BadUse(
            f"whoever reaches {host} could see the runs: set a token of at least 16 characters in "
            "EFFECTFLOW_UI_TOKEN, or add --token new"
        )
    found, checkpoints = _found(app, access)
    # Why it cannot be opened is told here, and later on the pages.
    anyio.run(_open, checkpoints.store)
    # A name of another site could lead a browser here, and its scripts would read the pages.
    pages = create_app(
        checkpoints, found, read_only=read_only, token=secret, hosts=() if secret else _LOCAL
    )
    with _listener(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        query = f"/?token={secret}" if secret else "/"
        say(f"The pages are at http://{shown}:{listener.getsockname()[1]}{query}")
        with suppress(KeyboardInterrupt):
            PageServer(pages, pages.state.feeds).run([listener])
    return Answer(None)


def _found(reference: str | None, access: Access) -> tuple[App[Any] | None, Checkpoints]:
    """Return the App, or one of the workflows of a module, and where the runs are.

    As for other commands, only `--store` itself overrides where an App has its runs. Raise BadUse.
    """
    found = None if reference is None else app_of_runs(reference)
    if found is not None and access.origin != "COMMANDLINE":
        return found, found.checkpoints
    access.check_store()
    if found is None and reference is not None:
        found = app_of_workflows(reference, access.checkpoints)
    return found, access.checkpoints


async def _open(store: CheckpointStore) -> None:
    async with store:
        pass


def _listener(host: str, port: int) -> socket.socket:
    """Return what listens there. Raise BadUse if that is not possible."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise BadUse(f"cannot listen on {host}, port {port}: {error}") from error
