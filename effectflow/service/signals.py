"""SIGINT and SIGTERM as a wish to stop: runs leave `Interrupted` behind and can be resumed."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar

import anyio

from effectflow.checkpoint.interruption import StopRequest, stop_request
from effectflow.effects.event_loop import call_soon_from_threads

__all__ = ["StoppedBySignal", "run_until_signal"]

A = TypeVar("A")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedBySignal(Exception):
    """The work was interrupted by a signal. `signal_name` says which one."""

    def __init__(self, signal_name: str) -> None:
        self.signal_name = signal_name
        super().__init__(f"stopped by {signal_name}")


async def run_until_signal(
    work: Callable[[], Awaitable[A]], *, on_signal: Callable[[str], object] | None = None
) -> A:
    """Await `work()`, and interrupt it when the process gets SIGINT or SIGTERM.

    The second signal ends the process at once, as if nobody had handled it. Must be called in the
    main thread.

    Parameters:
        work: what to do.
        on_signal: is told the name of the first signal, in the event loop. Work in threads cannot be
            stopped, so some time may pass between the signal and the end.

    Raises StoppedBySignal once the interrupted work has cleaned up after itself.
    """
    request = StopRequest()
    received: list[str] = []
    call_soon = call_soon_from_threads()
    outer = {number: signal.getsignal(number) for number in _SIGNALS}

    def stop(number: int, _frame: FrameType | None) -> None:
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_DFL)
        received.append(signal.Signals(number).name)
        request.reason = received[0]
        call_soon(interrupt)

    def interrupt() -> None:
        scope.cancel()
        if on_signal is not None:
            on_signal(received[0])

    token = stop_request.set(request)
    for number in _SIGNALS:
        signal.signal(number, stop)
    try:
        with anyio.CancelScope() as scope:
            return await work()
    finally:
        stop_request.reset(token)
        for number in _SIGNALS:
            signal.signal(number, outer[number])
    raise StoppedBySignal(received[0])
