"""Short-lived processes, forked from one that has imported everything."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable

import anyio

from effectflow import Checkpoints
from effectflow.stores import MemoryStore
from tests.stores.faults.tale import WORDS, App, tale

__all__ = ["ending_of", "forked", "get_ready"]


def get_ready() -> None:
    """Import and cache what the forked processes need. Start no thread."""

    async def tell_it_once() -> None:
        await tale.start(WORDS).run_or_raise(App(Checkpoints(MemoryStore()), len))

    anyio.run(tell_it_once)
    gc.freeze()


def forked(work: Callable[[], object]) -> int:
    """Call this in a forked process, and return its id. Only for processes with one thread."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException as raised:
        traceback.print_exception(raised)
    finally:
        sys.stderr.flush()
        os._exit(code)


def ending_of(pid: int) -> int:
    """Wait for a process. Return its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
