"""What a worker process of `ProcessExecutor` does: answer calls, one after another, until told to end.

It ends when its standard input does, so also when the process that started it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from typing import BinaryIO, Literal

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from effectflow.effects.event_loop import CallSoon, call_soon_from_threads
from effectflow.executors.call import answer, defect_reply
from effectflow.executors.environment import environment
from effectflow.executors.frames import frame, read_frame
from effectflow.executors.pickling import loads

__all__ = ["CANCEL", "Greeting", "main"]

CANCEL = b""
"""What the coordinator sends, in place of a call, to cancel the one before; and the reply to that."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a worker is told first.

    Attributes:
        make_env: the pickled factory of the environment.
        backend: the event loop to run, that of the coordinator.
        grace: seconds that the process has to end once it is to end.
    """

    make_env: bytes
    backend: Literal["asyncio", "trio"]
    grace: float


def main() -> None:
    """Answer calls until standard input ends."""
    # Whoever presses Ctrl-C means the coordinator, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # So does who sends SIGUSR1 to all the processes of a service, as systemd does: it is to save.
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    requests, replies = _take_pipes()
    greeting = read_frame(requests)
    if greeting is not None:
        told: Greeting = loads(greeting)
        anyio.run(_serve, told, requests, replies, backend=told.backend)


def _take_pipes() -> tuple[BinaryIO, FileIO]:
    """The pipes to the coordinator, out of reach for items: what these print goes to standard error."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    if hasattr(os, "register_at_fork"):
        # A process that an item forks must not keep the pipes open when this one is dead.
        for pipe in (requests, replies):
            os.register_at_fork(after_in_child=partial(os.close, pipe.fileno()))
    return requests, replies


async def _serve(told: Greeting, requests: BinaryIO, replies: FileIO) -> None:
    inbox = _Inbox()
    arguments = (requests, call_soon_from_threads(), inbox, told.grace)
    threading.Thread(target=_read, args=arguments, daemon=True).start()
    async with AsyncExitStack() as life:
        while True:
            try:
                env = await life.enter_async_context(environment(told.make_env))
                break
            except Exception as defect:
                refusal = defect_reply(defect)
            if await inbox.next_call() is None:
                return
            _write(replies, refusal)
            # The next call may fare better. To end here would look to it as if the process had died.
            if not await inbox.has_call():
                return
        while (call := await inbox.next_call()) is not None:
            reply = CANCEL
            with inbox.cancellable():
                # One that was cancelled before it began does not begin.
                await checkpoint_if_cancelled()
                reply = await answer(call, env)
            _write(replies, reply)


class _Inbox:
    """What the coordinator wants: one call at a time. All of it is used within the event loop."""

    def __init__(self) -> None:
        self._call: bytes | None = None
        self._is_cancelled = False
        self._is_over = False
        self._scope: anyio.CancelScope | None = None
        self._news = anyio.Event()

    def put(self, request: bytes) -> None:
        """Take what the coordinator sent."""
        if request == CANCEL:
            self._cancel()
        else:
            self._call, self._is_cancelled = request, False
            self._news.set()

    def end(self) -> None:
        """Nothing will come any more, and nobody waits for a reply."""
        self._is_over = True
        self._cancel()
        self._news.set()

    async def next_call(self) -> bytes | None:
        """Wait for a call; None at the end."""
        await self.has_call()
        call, self._call = self._call, None
        return call

    async def has_call(self) -> bool:
        """Wait for a call, and leave it there; False at the end."""
        while self._call is None and not self._is_over:
            await self._news.wait()
            self._news = anyio.Event()
        return self._call is not None

    @contextmanager
    def cancellable(self) -> Generator[None]:
        """What is done within can be cancelled by the coordinator."""
        with anyio.CancelScope() as self._scope:
            if self._is_cancelled:
                self._scope.cancel()
            yield
        self._scope = None

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()


def _write(replies: FileIO, reply: bytes) -> None:
    # The coordinator may be gone, which the reader notices too.
    unwritten = memoryview(frame(reply))
    with suppress(BrokenPipeError):
        while unwritten:
            unwritten = unwritten[replies.write(unwritten) :]


def _read(requests: BinaryIO, call_soon: CallSoon, inbox: _Inbox, grace: float) -> None:
    """Hand on what the coordinator says, in a thread: an item may keep the event loop busy."""
    with suppress(RuntimeError):  # the event loop may have ended first
        while (request := read_frame(requests)) is not None:
            call_soon(inbox.put, request)
        call_soon(inbox.end)
    # Time for the finalizers of an item and of the environment, and then by force.
    time.sleep(grace)
    os._exit(1)
