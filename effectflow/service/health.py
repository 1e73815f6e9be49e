"""The health of a worker, and how a supervisor asks for it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import anyio
from anyio.abc import Listener, SocketAttribute, SocketStream

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.run_info import RunQuery, RunStatus

_MOST_COUNTED = 100

_MOST_BYTES = 8192
"""The longest head of a request that is read."""

_SECONDS_TO_ASK = 5.0
"""The time for one request."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a worker is.

    Attributes:
        is_alive: whether it takes runs. Not before it is open, and not once it begins to end.
        store_error: why the store cannot be reached, in words; empty if it can.
        driven: the runs that it drives now.
        limit: the most that it drives.
        overdue: the runs of its workflows, at most 100, that have been due for longer than was asked
            about, and that no process has taken: new ones, interrupted ones, and those of dead processes.
            They wait for a worker, or for a limit.
    """

    is_alive: bool
    store_error: str
    driven: int
    limit: int
    overdue: int

    @property
    def is_healthy(self) -> bool:
        """Whether it takes runs from a store that it reaches. Overdue runs need more workers instead."""
        return self.is_alive and not self.store_error


async def overdue_runs(checkpoints: Checkpoints, workflows: Iterable[str], *, before: float) -> int:
    """Return how many runs were due before a time, in seconds since the epoch; see `Health.overdue`."""
    waiting = frozenset({RunStatus.PENDING, RunStatus.INTERRUPTED, RunStatus.RUNNING})
    query = RunQuery(statuses=waiting, resumable=True, updated_before=before, limit=_MOST_COUNTED)
    known = set(workflows)
    async with checkpoints.store as store:
        found = [info.summary for info in await store.find(query)]
    return sum(
        one.workflow in known and one.due_at is not None and one.due_at <= before for one in found
    )


async def serve_health(
    listener: Listener[SocketStream], ask: Callable[[], Awaitable[Health]]
) -> None:
    """Answer HTTP requests with the health as JSON: 200 if it is healthy, otherwise 503.

    Any path will do. It serves until it is cancelled, and closes the listener.
    """

    async def answer(stream: SocketStream) -> None:
        with anyio.move_on_after(_SECONDS_TO_ASK):
            async with stream:
                try:
                    await _read_head(stream)
                    await stream.send(_response(await ask()))
                except (anyio.BrokenResourceError, anyio.EndOfStream):
                    # The one who asks has gone.
                    return

    async with listener:
        await listener.serve(answer)


def port_of(listener: Listener[SocketStream]) -> int:
    """Return the port that a listener has."""
    return listener.extra(SocketAttribute.local_port)


async def _read_head(stream: SocketStream) -> None:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _MOST_BYTES:
        head += await stream.receive()


def _response(health: Health) -> bytes:
    body = json.dumps({"is_healthy": health.is_healthy, **dataclasses.asdict(health)}).encode()
    status = "200 OK" if health.is_healthy else "503 Service Unavailable"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
