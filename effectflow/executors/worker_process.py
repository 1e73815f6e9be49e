"""One worker process, as the process that started it sees it."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from typing import cast

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from effectflow.effects.event_loop import running_backend
from effectflow.executors.frames import FrameStream, frame
from effectflow.executors.pickling import dumps
from effectflow.executors.worker_main import CANCEL, Greeting

__all__ = ["WorkerDied", "WorkerProcess"]

_LOST = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


class WorkerDied(Exception):
    """The process ended before it had replied. The message says how."""


class WorkerProcess:
    """A process that answers one call at a time."""

    def __init__(self, process: Process, grace: float) -> None:
        self._process = process
        self._grace = grace
        self._requests = cast(ByteSendStream, process.stdin)
        self._replies = FrameStream(cast(ByteReceiveStream, process.stdout))
        self._owes_reply = False
        self._is_sending = False

    @classmethod
    async def start(cls, make_env: bytes, grace: float) -> WorkerProcess:
        """Start a process that makes itself an environment."""
        # A session of its own: Ctrl-C in the terminal is for the coordinator alone.
        process = await anyio.open_process(
            _command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            start_new_session=True,
        )
        worker = cls(process, grace)
        with suppress(*_LOST):
            # If it is dead already, the first call will say so.
            await worker._requests.send(frame(dumps(Greeting(make_env, running_backend(), grace))))
        return worker

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended, as far as is known."""
        return self._process.returncode is None

    async def ask(self, call: bytes) -> bytes:
        """The reply to a call. Raises WorkerDied if the process ends instead."""
        try:
            self._is_sending = self._owes_reply = True
            await self._requests.send(frame(call))
            self._is_sending = False
            reply = await self._replies.receive()
        except _LOST:
            self._owes_reply = False
            raise WorkerDied(await self.end()) from None
        self._owes_reply = False
        return reply

    async def interrupt(self) -> bool:
        """Cancel the call whose `ask` was cancelled, if any. Gives whether it can be asked again.

        An item that takes longer to end than the grace allows, or that keeps its event loop busy, is
        ended together with its process.
        """
        if self._owes_reply and not self._is_sending:
            with anyio.move_on_after(self._grace), suppress(*_LOST):
                await self._requests.send(frame(CANCEL))
                await self._replies.receive()
                self._owes_reply = False
        if self._owes_reply:
            with suppress(ProcessLookupError):
                self._process.kill()
        if self._owes_reply or not self.is_alive:
            await self.end()
            return False
        return True

    async def end(self) -> str:
        """End the process, if need be by force once its grace is over. Gives how it ended."""
        with anyio.move_on_after(self._grace):
            # Closes its standard input, which it understands; cut off, kills it.
            await self._process.aclose()
        return _manner(await self._process.wait())


def _command() -> list[str]:
    """A fresh interpreter: a fork would inherit threads and event loops in a state nobody knows."""
    # Python looks only where text says, and overlooks a `pathlib.Path`, say.
    places = [str(place) for place in sys.path if isinstance(cast(object, place), str)]
    code = (
        f"import sys; sys.path[:] = {places!r}; "
        "from effectflow.executors.worker_main import main; main()"
    )
    return [sys.executable, "-c", code]


def _manner(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
