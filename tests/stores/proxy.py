"""A proxy between a client and a server that can lose answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


class LossyProxy:
    """Listens on a unix socket and forwards to another.

    After `lose_answer_to(part)`, the next request that contains `part` reaches the server. The proxy
    waits for the answer, drops it, calls `meanwhile`, and cuts the connection on both sides. `cut` cuts
    all connections at once; `go_away` also accepts no new ones, until `come_back`. While `is_silent`,
    all answers are dropped. `last_answer` is what the server sent last, on any connection.
    """

    def __init__(self, path: Path, target: Path) -> None:
        self._path = path
        self._target = target
        self._part: bytes | None = None
        self._connections: list[_Connection] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.is_silent = False
        self.last_answer = b""
        self.cuts = 0
        self._listen()

    def _listen(self) -> None:
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def lose_answer_to(
        self, part: bytes, *, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        self._part = part
        self.meanwhile = meanwhile

    def cut(self) -> None:
        for connection in self._connections:
            connection.cut()

    def go_away(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def come_back(self) -> None:
        self._listen()
        self._thread.start()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.go_away()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._target))
            connection = _Connection(self, client, server)
            self._connections.append(connection)
            connection.start()

    def loses_answer_to(self, request: bytes) -> bool:
        """Return whether to lose the answer to this request."""
        if self._part is None or self._part not in request:
            return False
        self._part = None
        return True


class _Connection:
    def __init__(self, proxy: LossyProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._is_losing = False

    def start(self) -> None:
        for pump in (self._requests, self._answers):
            threading.Thread(target=pump, daemon=True).start()

    def _requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(65536):
                self._is_losing = self._is_losing or self._proxy.loses_answer_to(data)
                self._server.sendall(data)
        self.cut()

    def _answers(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(65536):
                self._proxy.last_answer = data
                if self._is_losing:
                    self._proxy.cuts += 1
                    self._proxy.meanwhile()
                    break
                if not self._proxy.is_silent:
                    self._client.sendall(data)
        self.cut()

    def cut(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
