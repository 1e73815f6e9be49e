"""Lists as arrays of a declared type, in the binary format of PostgreSQL.

The driver finds out the type of a list from its elements. That took a quarter of the time of a short run,
and a list without values had another type, for which the statement was prepared again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_HEADER = struct.Struct(">iiIii")
"""The number of dimensions, whether there may be nulls, the type, the length, and the first index."""

_SIZE = struct.Struct(">i")
_NULL = _SIZE.pack(-1)


class Array:
    """A list for a parameter. Each subclass is for one type of elements."""

    __slots__ = ("items",)
    array_oid: ClassVar[int]
    oid: ClassVar[int]
    write: ClassVar[Callable[[Any, str], bytes]]

    def __init__(self, items: Sequence[object]) -> None:
        self.items = items


class _Bytes(Array):
    array_oid, oid = 1001, 17

    @staticmethod
    def write(item: bytes, _encoding: str) -> bytes:
        return item


class _Texts(Array):
    array_oid, oid = 1009, 25

    @staticmethod
    def write(item: str, encoding: str) -> bytes:
        return escaped(item).encode(encoding)


class _Integers(Array):
    array_oid, oid = 1016, 20
    pack = struct.Struct(">q").pack

    @staticmethod
    def write(item: int, _encoding: str) -> bytes:
        return _Integers.pack(item)


class _Floats(Array):
    array_oid, oid = 1022, 701
    pack = struct.Struct(">d").pack

    @staticmethod
    def write(item: float, _encoding: str) -> bytes:
        return _Floats.pack(item)


class _Booleans(Array):
    array_oid, oid = 1000, 16

    @staticmethod
    def write(item: bool, _encoding: str) -> bytes:
        return b"\1" if item else b"\0"


ARRAYS: Mapping[str, type[Array]] = {
    "bytea": _Bytes,
    "text": _Texts,
    "bigint": _Integers,
    "float8": _Floats,
    "bool": _Booleans,
}
"""The classes by the names of the types of elements."""


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type[Array], context: Any = None) -> None:
        super().__init__(cls, context)
        self.oid = cls.array_oid
        encoding = "ascii" if self.connection is None else self.connection.info.encoding
        # A database without an encoding gets what the driver sends it otherwise.
        self._encoding = "utf-8" if encoding == "ascii" else encoding

    def dump(self, obj: Array) -> bytes:
        write, encoding = type(obj).write, self._encoding
        parts = [_HEADER.pack(1, 1, obj.oid, len(obj.items), 1)]
        for item in obj.items:
            if item is None:
                parts.append(_NULL)
            else:
                data = write(item, encoding)
                parts += _SIZE.pack(len(data)), data
        return b"".join(parts)


def escaped(text: str) -> str:
    """Return a text without the zero character, which PostgreSQL does not accept. It sorts the same."""
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def adapt_arrays(adapters: AdaptersMap) -> None:
    """Let a connection take each `Array` as a parameter."""
    for cls in ARRAYS.values():
        adapters.register_dumper(cls, _ArrayDumper)
