"""Messages on a pipe: the length in eight bytes, and then as many."""

from __future__ import annotations

import struct
from typing import BinaryIO

from anyio.abc import ByteReceiveStream

__all__ = ["FrameStream", "frame", "read_frame"]

_LENGTH = struct.Struct(">Q")


def frame(message: bytes) -> bytes:
    """A message as it is written."""
    return _LENGTH.pack(len(message)) + message


def read_frame(pipe: BinaryIO) -> bytes | None:
    """The next message; None at the end, also if it comes in the middle of one."""
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    message = pipe.read(length)
    return message if len(message) == length else None


class FrameStream:
    """Reads messages from an async stream. A cancelled read loses nothing: the next one goes on."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self._unread = bytearray()

    async def receive(self) -> bytes:
        """The next message. Raises what the stream raises at its end."""
        while (message := self._complete()) is None:
            self._unread += await self._stream.receive()
        return message

    def _complete(self) -> bytes | None:
        if len(self._unread) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._unread)
        end = _LENGTH.size + length
        if len(self._unread) < end:
            return None
        message = bytes(memoryview(self._unread)[_LENGTH.size : end])
        del self._unread[:end]
        return message
