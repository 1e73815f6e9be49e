"""`effectflow worker`: drive the runs of an App."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import anyio
import orjson
import typer
from anyio.abc import Listener, SocketStream

from effectflow.checkpoint.errors import printable
from effectflow.cli.app_loader import load_app
from effectflow.cli.options import BadUse
from effectflow.observe import Fields, ReplayFilter, RunFields
from effectflow.service import App, StoppedBySignal, Worker, run_until_signal
from effectflow.service.health import port_of, serve_health

logger = logging.getLogger(__name__)


def worker(
    app: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="The App, such as shop.service:app.")
    ],
    limit: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Drive at most N runs at the same time. Limits of all workers together are those of "
            "the queues of the App.",
        ),
    ] = 100,
    grace: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How long steps in progress may take after SIGTERM."
        ),
    ] = 10.0,
    pinned: Annotated[
        bool,
        typer.Option(
            "--pinned",
            help="Take only runs of the present version of their workflow, even if it has a migration "
            "for earlier ones: workers of the code before continue those.",
        ),
    ] = False,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Answer HTTP requests on this port of 127.0.0.1 with the health of the worker as JSON: "
            "200, or 503 if it takes no runs or cannot reach the store. With 0, the port is chosen.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log lines of JSON.")] = False,
) -> None:
    """Drive the runs of an App: those that are submitted, due, or left by a process that died.

    SIGTERM or Ctrl-C ends it in order: it takes no more runs, and interrupts the steps that do not end
    in time. Other workers continue their runs. A second signal interrupts them at once.
    """
    loaded = load_app(app)
    try:
        own_versions = {name: [one.version] for name, one in loaded.workflows.items()}
        made = Worker(
            loaded,
            limit=limit,
            grace=grace,
            versions=own_versions if pinned else None,
        )
    except ValueError as error:
        raise BadUse(str(error)) from error
    _log_lines(as_json=as_json)
    anyio.run(_work, made, app, health_port)


async def _work(made: Worker[Any], name: str, health_port: int | None) -> None:
    listener = None if health_port is None else await _listener(health_port)

    async def serve() -> None:
        async with made:
            logger.info("the worker of %s takes runs of %s", name, _workflows(made.app))
            if listener is None:
                await anyio.sleep_forever()
            else:
                logger.info("its health is at http://127.0.0.1:%d", port_of(listener))
                await serve_health(listener, made.health)

    def hurrying(signal_name: str) -> None:
        made.hurry(f"{signal_name} again")

    try:
        await run_until_signal(serve, on_second_signal=hurrying)
    except StoppedBySignal:
        logger.info("the worker of %s has ended", name)


async def _listener(port: int) -> Listener[SocketStream]:
    """Return what listens on a port of this host. Raise BadUse if another program does."""
    try:
        return await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    except OSError as error:
        raise BadUse(f"--health-port {port}: {error}") from error


def _workflows(app: App[Any]) -> str:
    return ", ".join(sorted(app.workflows)) or "no workflows"


def _log_lines(*, as_json: bool) -> None:
    """Log to standard error, one line per event, unless the App has configured logging."""
    if logging.root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLine() if as_json else _Line())
    handler.addFilter(RunFields())
    handler.addFilter(ReplayFilter())
    logging.basicConfig(handlers=[handler])
    logging.getLogger("effectflow").setLevel(logging.INFO)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


class _Line(logging.Formatter):
    """A time, a level, the place in a run and a message, escaped so that they stay on one line."""

    def format(self, record: logging.LogRecord) -> str:
        time = _time(record).astimezone().isoformat(" ", "milliseconds")
        line = f"{time} {record.levelname:<7} {_place(record)}{record.getMessage()}"
        exception = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return printable(line) + exception


def _place(record: logging.LogRecord) -> str:
    """Return the workflow, the run, and the attempt of a step that a record is about, if any."""
    known = {name: getattr(record, name, None) for name in Fields.__annotations__}
    step = f"{known['step']}#{known['attempt']}" if known["step"] else ""
    parts = [str(part) for part in (known["workflow"], known["run_id"], step) if part]
    return f"[{' '.join(parts)}] " if parts else ""


class _JsonLine(logging.Formatter):
    """The same as a JSON object, with the fields of the run that the record is about."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in Fields.__annotations__:
            if value := getattr(record, name, None):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()
