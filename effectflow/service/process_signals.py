"""Handle signals to a process that drives runs: SIGINT and SIGTERM stop runs, SIGUSR1 saves them.

A stopped run records `Interrupted` and can be resumed.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar

import anyio

from effectflow.checkpoint.delayed_saves import SaveRequest, save_request
from effectflow.checkpoint.stopping import StopRequest, stop_request
from effectflow.effects.errors import Copyable
from effectflow.effects.event_loop import call_soon_from_threads

A = TypeVar("A")

_STOP = (signal.SIGINT, signal.SIGTERM)
# Windows has no SIGUSR1.
_SAVE = (signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()


class StoppedBySignal(Copyable, Exception):
    """A signal interrupted the work. `signal_name` names it, such as "SIGTERM"."""

    def __init__(self, signal_name: str) -> None:
        self.signal_name = signal_name
        super().__init__(f"stopped by {signal_name}")


async def run_until_signal(
    work: Callable[[], Awaitable[A]],
    *,
    on_signal: Callable[[str], object] | None = None,
    on_second_signal: Callable[[str], object] | None = None,
) -> A:
    """Await `work()`, and interrupt it when the process receives SIGINT or SIGTERM.

    The next such signal ends the process at once, as if it had no handler. SIGUSR1 interrupts nothing:
    every run saves its progress at once, regardless of its checkpoint policy. Call this in the main
    thread.

    Parameters:
        work: returns what to await.
        on_signal: called with the name of the first signal, in the event loop. Some time may pass
            before the work ends, because threads cannot be interrupted.
        on_second_signal: called for the second signal, such as `worker.hurry`. Then the third one ends
            the process.

    Raise StoppedBySignal once the interrupted work has cleaned up.
    """
    request, saving = StopRequest(), SaveRequest()
    received: list[str] = []
    call_soon = call_soon_from_threads()
    outer = {number: signal.getsignal(number) for number in (*_STOP, *_SAVE)}

    def stop(number: int, _frame: FrameType | None) -> None:
        received.append(signal.Signals(number).name)
        if on_second_signal is None or len(received) == 2:
            for other in _STOP:
                signal.signal(other, signal.SIG_DFL)
        if len(received) == 1:
            request.reason = received[0]
            call_soon(interrupt)
        elif on_second_signal is not None:
            call_soon(on_second_signal, received[1])

    def interrupt() -> None:
        scope.cancel()
        if on_signal is not None:
            on_signal(received[0])

    def save(_number: int, _frame: FrameType | None) -> None:
        call_soon(saving.ask)

    token, save_token = stop_request.set(request), save_request.set(saving)
    for number in outer:
        signal.signal(number, stop if number in _STOP else save)
    try:
        with anyio.CancelScope() as scope:
            return await work()
    finally:
        stop_request.reset(token)
        save_request.reset(save_token)
        for number, handler in outer.items():
            signal.signal(number, handler)
    raise StoppedBySignal(received[0])
