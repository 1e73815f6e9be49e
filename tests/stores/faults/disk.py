"""What a process did to its files, and what a disk may contain of that after a power loss.

The model is the strict one of POSIX, as in "All File Systems Are Not Created Equal" (Pillai and
others, 2014): what was written to a file is on disk once the file was synced, and a name once its
folder was synced. Of everything else any part may be there, sector by sector.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeAlias, assert_never

__all__ = ["Contents", "Note", "Operation", "Sync", "contents", "lay_out", "note", "read_record"]

_HEADER = struct.Struct("=cQqQQQ")
_SECTOR = 512


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes put into a file."""

    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """A file truncated, or extended by zeros."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A file or folder synced. If that failed, the unsynced data of a file is lost, as on Linux."""

    path: Path
    inode: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class Create:
    """A new file, empty."""

    path: Path
    inode: int


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """A new folder."""

    path: Path


@dataclass(frozen=True, slots=True)
class Rename:
    """Another name for a file, instead of the one it had."""

    path: Path
    old: Path


@dataclass(frozen=True, slots=True)
class Link:
    """Another name for a file."""

    path: Path
    old: Path


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link."""

    path: Path
    target: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A name removed."""

    path: Path


@dataclass(frozen=True, slots=True)
class Note:
    """A note of the process at this moment."""

    text: str


Operation: TypeAlias = (
    Write | Resize | Sync | Create | MakeFolder | Rename | Link | Symlink | Remove | Note
)


# The record.


def note(record: int, text: str) -> None:
    """Write a note to the record."""
    data = text.encode()
    os.write(record, _HEADER.pack(b"n", 0, 0, 0, 0, len(data)) + data)


def read_record(path: Path, root: Path) -> list[Operation]:
    """Return what `faults.c` has recorded of the files within a root, and the notes.

    Paths are relative to that root.
    """
    return list(_operations(path.read_bytes(), root))


def _operations(record: bytes, root: Path) -> Iterator[Operation]:
    position = 0
    while position < len(record):
        kind, inode, offset, *lengths = _HEADER.unpack_from(record, position)
        position += _HEADER.size
        parts: list[bytes] = []
        for length in lengths:
            parts.append(record[position : position + length])
            position += length
        path, old = _relative(parts[0], root), _relative(parts[1], root)
        match kind:
            case b"w":
                yield Write(inode, offset, parts[2])
            case b"t":
                yield Resize(inode, offset)
            case b"s" | b"f":
                yield Sync(path, inode, kind == b"s")
            case b"c":
                yield Create(path, inode)
            case b"m":
                yield MakeFolder(path)
            case b"r":
                yield Rename(path, old)
            case b"l":
                yield Link(path, old)
            case b"y":
                yield Symlink(path, os.fsdecode(parts[1]))
            case b"u":
                yield Remove(path)
            case b"n":
                yield Note(parts[2].decode())
            case _:
                raise ValueError(f"no operation {kind!r}")


def _relative(path: bytes, root: Path) -> Path:
    return Path(os.path.relpath(os.fsdecode(path) or root, root))


# The disk.


@dataclass(slots=True, eq=False)
class File:
    """A file: its synced content, and the changes since."""

    synced: bytes = b""
    pending: list[Write | Resize] = field(default_factory=list["Write | Resize"])


class Folder:
    """A folder. Its contents are the names that begin with its own."""


Node: TypeAlias = File | Folder | str
"""What a name refers to; text for a symbolic link."""

Contents: TypeAlias = dict[Path, bytes | str | None]
"""The contents of a folder: the bytes of a file, the target of a symbolic link, None for a folder."""

Naming: TypeAlias = dict[Path, Node | None]
"""One atomic change of names; None for a removed name."""


@dataclass(slots=True)
class _Disk:
    """The synced and the pending state after some operations."""

    names: dict[Path, Node] = field(default_factory=dict[Path, Node])
    synced: dict[Path, Node] = field(default_factory=dict[Path, Node])
    pending: list[Naming] = field(default_factory=list[Naming])
    files: dict[int, File] = field(default_factory=dict[int, File])

    def do(self, operation: Operation) -> None:
        match operation:
            case Write() | Resize():
                self.files[operation.inode].pending.append(operation)
            case Sync():
                self._sync(operation)
            case Create(path, inode):
                self.files[inode] = File()
                self._name({path: self.files[inode]})
            case MakeFolder(path):
                self._name({path: Folder()})
            case Rename(path, old):
                self._name({old: None, path: self.names[old]})
            case Link(path, old):
                self._name({path: self.names[old]})
            case Symlink(path, target):
                self._name({path: target})
            case Remove(path):
                self._name({path: None})
            case Note():
                pass
            case _:
                assert_never(operation)

    def _name(self, naming: Naming) -> None:
        _apply(naming, self.names)
        self.pending.append(naming)

    def _sync(self, sync: Sync) -> None:
        if sync.path == Path() or isinstance(self.names.get(sync.path), Folder):
            if sync.is_done:
                self._sync_names(sync.path)
            return
        file = self.files[sync.inode]
        if sync.is_done:
            file.synced = _written(file.synced, file.pending)
        file.pending = []

    def _sync_names(self, folder: Path) -> None:
        within = [
            change for change in self.pending if any(path.parent == folder for path in change)
        ]
        self.pending = [change for change in self.pending if change not in within]
        for change in within:
            _apply(change, self.synced)


def _apply(naming: Naming, names: dict[Path, Node]) -> None:
    for path, node in naming.items():
        if node is None:
            names.pop(path, None)
        else:
            names[path] = node


def _written(data: bytes, changes: Iterable[Write | Resize]) -> bytes:
    content = bytearray(data)
    for change in changes:
        match change:
            case Write(_, offset, data):
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data
            case Resize(_, size):
                content.extend(bytes(max(0, size - len(content))))
                del content[size:]
    return bytes(content)


def contents(operations: Iterable[Operation], keep: float, chance: Random) -> Contents:
    """Return what is on a disk, empty at first, if the power fails after these operations.

    Parameters:
        keep: the share of the unsynced changes that is on disk, from 0 to 1.
        chance: chooses those changes.
    """
    disk = _Disk()
    for operation in operations:
        disk.do(operation)
    names = dict(disk.synced)
    for naming in disk.pending:
        if chance.random() < keep:
            _apply(naming, names)
    found: Contents = {}
    folders = {Path()}
    for path, node in sorted(names.items()):
        if path.parent in folders:
            found[path] = _kept(node, keep, chance)
            if isinstance(node, Folder):
                folders.add(path)
    return found


def _kept(node: Node, keep: float, chance: Random) -> bytes | str | None:
    match node:
        case File():
            parts = [part for change in node.pending for part in _sectors(change)]
            return _written(node.synced, [part for part in parts if chance.random() < keep])
        case Folder():
            return None
        case _:
            return node


def _sectors(change: Write | Resize) -> list[Write | Resize]:
    """Return the parts of a change that are on disk or not independently."""
    if isinstance(change, Resize):
        return [change]
    parts: list[Write | Resize] = []
    start, end = change.offset, change.offset + len(change.data)
    while start < end:
        stop = min(end, start - start % _SECTOR + _SECTOR)
        data = change.data[start - change.offset : stop - change.offset]
        parts.append(Write(change.inode, start, data))
        start = stop
    return parts


def lay_out(found: Contents, folder: Path) -> None:
    """Create a folder with these contents."""
    folder.mkdir()
    for path, content in found.items():
        match content:
            case None:
                (folder / path).mkdir()
            case str():
                (folder / path).symlink_to(content)
            case bytes():
                (folder / path).write_bytes(content)
