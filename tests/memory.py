"""How much memory the library holds."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import effectflow

_LIBRARY = tracemalloc.Filter(True, str(Path(effectflow.__file__).parent / "*"))


@contextmanager
def memory_traced() -> Iterator[None]:
    """Let `memory_held` see what is made in this block."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def memory_held() -> int:
    """Return the bytes that the library's own lines have taken and still hold.

    What the rest of the process takes meanwhile does not count: the source of a warning
    that is printed, or a thread of the test runner.
    """
    gc.collect()
    traces = tracemalloc.take_snapshot().filter_traces([_LIBRARY]).traces
    return sum(trace.size for trace in traces)
