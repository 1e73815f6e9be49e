"""The main function of a worker process of `ProcessExecutor`, and the frames on its pipes.

A worker answers one call after another. It ends when its standard input ends, and so also when the
process that started it is killed.
"""

from __future__ import annotations

import os
import signal
import struct
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
from effectflow.executors.pickling import loads
from effectflow.executors.remote_call import answer, defect_reply, worker_environment

FRAME_LENGTH = struct.Struct(">Q")
"""The header of a frame: the length in bytes of the message that follows."""

CANCEL = b""
"""The message that cancels the call before it, and the reply to a call that was cancelled."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first message to a worker.

    Attributes:
        environment: the pickled factory of the environment.
        backend: the event loop to run, the same as the coordinator's.
        grace: seconds that the process has for finalizers once its standard input has ended.
    """

    environment: bytes
    backend: Literal["asyncio", "trio"]
    grace: float


def frame(message: bytes) -> bytes:
    """Return a message with its header."""
    return FRAME_LENGTH.pack(len(message)) + message


def _read_frame(pipe: BinaryIO) -> bytes | None:
    """Return the next message, or None at the end, even if the last message is incomplete."""
    header = pipe.read(FRAME_LENGTH.size)
    if len(header) < FRAME_LENGTH.size:
        return None
    (length,) = FRAME_LENGTH.unpack(header)
    message = pipe.read(length)
    return message if len(message) == length else None


def main() -> None:
    """Answer calls until standard input ends."""
    # Ctrl-C is meant for the coordinator, which then ends its workers. So is SIGUSR1, the request to
    # save, which a service manager such as systemd may send to all processes.
    for name in ("SIGINT", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    requests, replies = _take_pipes()
    message = _read_frame(requests)
    if message is not None:
        greeting: Greeting = loads(message)
        anyio.run(_serve, greeting, requests, replies, backend=greeting.backend)


def _take_pipes() -> tuple[BinaryIO, FileIO]:
    """Return the pipes to the coordinator. What items print goes to standard error instead."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    if hasattr(os, "register_at_fork"):
        # A process that an item forks must not keep the pipes open after this process has died.
        for pipe in (requests, replies):
            os.register_at_fork(after_in_child=partial(os.close, pipe.fileno()))
    return requests, replies


async def _serve(greeting: Greeting, requests: BinaryIO, replies: FileIO) -> None:
    inbox = _Inbox()
    arguments = (requests, call_soon_from_threads(), inbox, greeting.grace)
    threading.Thread(target=_read, args=arguments, daemon=True).start()
    async with AsyncExitStack() as stack:
        while True:
            try:
                env = await stack.enter_async_context(worker_environment(greeting.environment))
                break
            except Exception as defect:
                reply = defect_reply(defect)
            if await inbox.next_call() is None:
                return
            _write(replies, reply)
            # Try again for the next call. If the process ended, that call would find it dead.
            if not await inbox.has_call():
                return
        while (call := await inbox.next_call()) is not None:
            reply = CANCEL
            with inbox.cancellable():
                # A call that was cancelled before its turn does not begin.
                await checkpoint_if_cancelled()
                reply = await answer(call, env)
            _write(replies, reply)


class _Inbox:
    """The requests of the coordinator, one call at a time. Only the event loop uses it."""

    def __init__(self) -> None:
        self._call: bytes | None = None
        self._is_cancelled = False
        self._is_over = False
        self._scope: anyio.CancelScope | None = None
        self._changed = anyio.Event()

    def put(self, request: bytes) -> None:
        """Take a request: a call, or `CANCEL`."""
        if request == CANCEL:
            self._cancel()
        else:
            self._call, self._is_cancelled = request, False
            self._changed.set()

    def end(self) -> None:
        """Note that no more requests follow: cancel the call in progress."""
        self._is_over = True
        self._cancel()
        self._changed.set()

    async def next_call(self) -> bytes | None:
        """Wait for a call and take it; return None at the end."""
        await self.has_call()
        call, self._call = self._call, None
        return call

    async def has_call(self) -> bool:
        """Wait for a call and leave it there; return False at the end."""
        while self._call is None and not self._is_over:
            await self._changed.wait()
            self._changed = anyio.Event()
        return self._call is not None

    @contextmanager
    def cancellable(self) -> Generator[None]:
        """Let the coordinator cancel the block."""
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
    unwritten = memoryview(frame(reply))
    # If the coordinator is gone, `_read` notices too.
    with suppress(BrokenPipeError):
        while unwritten:
            unwritten = unwritten[replies.write(unwritten) :]


def _read(requests: BinaryIO, call_soon: CallSoon, inbox: _Inbox, grace: float) -> None:
    """Pass requests to the event loop, from a thread, because an item may keep the loop busy."""
    with suppress(RuntimeError):  # the event loop may have ended first
        while (request := _read_frame(requests)) is not None:
            call_soon(inbox.put, request)
        call_soon(inbox.end)
    # Finalizers of the item and of the environment have this long; then the process ends by force.
    time.sleep(grace)
    os._exit(1)
