"""Machines as JSON and as binary data, and back. Both have the same content: see `SavedForm.write`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import NoneType
from typing import Any, TypeAlias, cast

import orjson

from effectflow.checkpoint.errors import CorruptCheckpoint, DefinitionChanged, UnsupportedVersion
from effectflow.checkpoint.values import (
    KnownTypes,
    MalformedValue,
    Tree,
    decode_compact,
    decode_json,
    encode_compact,
    encode_json,
    from_tree,
    to_tree,
)
from effectflow.workflows.machine.history import History, HistoryEntry
from effectflow.workflows.machine.machine import Machine, MachineMetadata, PendingRetry
from effectflow.workflows.machine.states import StateSet, name_of
from effectflow.workflows.migrating import Migration, migrated

__all__ = ["MACHINE_FORMAT", "SavedForm"]

MACHINE_FORMAT = 1
"""The version of the format that machines are written in."""

_DICTIONARY = (
    b"dfrom\x81e$enum\x82bto\xa1e$enum\x82batx 2026-01-01T00:00:00.000000+00:00gattempt\x01"
    b"labort_reason\xf6\xa6jtransitionjcreated_at\xf6jupdated_at\xf6ntotal_attempts\xa0gpending\xf6"
    b"\xa8gversion\x01hworkflowpworkflow_versiona1minitial_state\xa1e$enum\x82mcurrent_state\xa1e$enum"
    b"\x82ghistory\x80hmetadata\xa4jcreated_at\xf6jupdated_at\xf6ntotal_attempts\xa0gpending\xf6fdigestx@"
)
"""The preset dictionary of the binary form: parts of the CBOR of machines. It is part of the format, and
never changes. A machine that has not gone through much is hardly more than these."""

AnyMachine: TypeAlias = Machine[Any]
Data: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SavedForm:
    """How the machines of one definition are written down.

    Attributes:
        name, version: those of the definition.
        states: all that it declares.
        types: the classes that they are made of.
        migrations: from a state that each earlier version saved to that of the next.
    """

    name: str
    version: str
    states: StateSet
    types: KnownTypes
    migrations: Mapping[int, Migration] = field(default_factory=dict[int, Migration])

    def write_json(self, machine: AnyMachine) -> str:
        return orjson.dumps(self._sealed(machine), option=orjson.OPT_INDENT_2).decode()

    def write_binary(self, machine: AnyMachine) -> bytes:
        return encode_compact(self._sealed(machine), dictionary=_DICTIONARY)

    def read_json(self, text: str, *, force: bool = False) -> AnyMachine:
        return self._opened(decode_json, text.encode("utf-8", "surrogatepass"), force)

    def read_binary(self, data: bytes, *, force: bool = False) -> AnyMachine:
        return self._opened(partial(decode_compact, dictionary=_DICTIONARY), data, force)

    def write(self, machine: AnyMachine) -> Data:
        """A machine as plain data, but for its states, which are left as they are."""
        return {
            "version": MACHINE_FORMAT,
            "workflow": self.name,
            "workflow_version": self.version,
            "initial_state": machine.initial,
            "current_state": machine.current,
            "history": [_write_entry(entry) for entry in machine.history],
            "metadata": _write_metadata(machine.metadata),
        }

    def read(self, data: object) -> AnyMachine:
        """The inverse of `write`. Raises TypeError or ValueError for anything else."""
        *_, initial, current, history, metadata = _take(data, _MACHINE)
        if current not in self.states:
            raise ValueError(f"{name_of(current)} is no state of {self.name!r}")
        entries = History(_read_entry(entry) for entry in history)
        return Machine(initial, current, entries, _read_metadata(metadata), self)

    def _sealed(self, machine: AnyMachine) -> dict[str, Tree]:
        tree = cast("dict[str, Tree]", to_tree(self.write(machine), types=self.types))
        return {**tree, "digest": _digest(tree)}

    def _opened(self, decode: Callable[[bytes], Tree], data: bytes, force: bool) -> AnyMachine:
        try:
            tree = _unsealed(decode(data), self.name)
        except (MalformedValue, TypeError, ValueError) as error:
            raise _corrupt(error) from error
        if tree["workflow_version"] != self.version:
            tree = self._upgraded(tree, force)
        try:
            return self.read(from_tree(tree, types=self.types))
        except (MalformedValue, TypeError, ValueError) as error:
            raise _corrupt(error) from error

    def _upgraded(self, tree: Data, force: bool) -> Tree:
        """What an earlier version saved, as this one would have, if migrations lead here."""
        was = tree["workflow_version"]
        upgraded, version = migrated(tree, was, self.migrations, "the saved machine")
        if version != self.version and not force:
            detail = f"its version was {was!r} and is {self.version!r}"
            raise DefinitionChanged("", self.name, detail=detail, what="the saved machine")
        return upgraded


def _unsealed(tree: Tree, name: str) -> Data:
    """The content of sealed data, if it is a machine of this name, and what was sealed."""
    version = tree.get("version") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(version, int):
        raise ValueError("it is no machine that was saved")
    if version > MACHINE_FORMAT:
        raise UnsupportedVersion("the saved machine", version, MACHINE_FORMAT)
    content: Data = {**tree}
    if content.pop("digest", None) != _digest(content):
        raise ValueError("its digest is not that of its content")
    _take(content, _MACHINE)
    if content["workflow"] != name:
        raise ValueError(f"it is a machine of {content['workflow']!r}, not of {name!r}")
    return content


def _corrupt(error: Exception) -> CorruptCheckpoint:
    return CorruptCheckpoint("", str(error), what="the saved machine")


def _digest(tree: dict[str, Tree]) -> str:
    return hashlib.sha256(encode_json(tree)).hexdigest()


_Shape: TypeAlias = Mapping[str, type[Any] | tuple[type[Any], ...]]

_MACHINE: _Shape = {
    "version": int,
    "workflow": str,
    "workflow_version": str,
    "initial_state": object,
    "current_state": object,
    "history": list,
    "metadata": dict,
}
_ENTRY: _Shape = {
    "transition": str,
    "from": object,
    "to": object,
    "at": str,
    "attempt": int,
    "abort_reason": (str, NoneType),
}
_METADATA: _Shape = {
    "created_at": (str, NoneType),
    "updated_at": (str, NoneType),
    "total_attempts": dict,
    "pending": (dict, NoneType),
}
_PENDING: _Shape = {
    "transition": str,
    "attempts": int,
    "feedback": str,
    "since": str,
    "retry_at": str,
}


def _write_entry(entry: HistoryEntry[Any]) -> Data:
    return {
        "transition": entry.transition,
        "from": entry.source,
        "to": entry.target,
        "at": entry.at.isoformat(),
        "attempt": entry.attempt,
        "abort_reason": entry.abort_reason,
    }


def _read_entry(data: object) -> HistoryEntry[Any]:
    transition, source, target, at, attempt, abort_reason = _take(data, _ENTRY)
    return HistoryEntry(transition, source, target, _time(at), attempt, abort_reason)


def _write_metadata(metadata: MachineMetadata) -> Data:
    created_at, updated_at, pending = metadata.created_at, metadata.updated_at, metadata.pending
    return {
        "created_at": None if created_at is None else created_at.isoformat(),
        "updated_at": None if updated_at is None else updated_at.isoformat(),
        "total_attempts": dict(metadata.total_attempts),
        "pending": None if pending is None else _write_pending(pending),
    }


def _read_metadata(data: object) -> MachineMetadata:
    created_at, updated_at, attempts, pending = _take(data, _METADATA)
    return MachineMetadata(
        None if created_at is None else _time(created_at),
        None if updated_at is None else _time(updated_at),
        dict(zip(attempts, _take(attempts, dict.fromkeys(attempts, int)), strict=True)),
        None if pending is None else _read_pending(pending),
    )


def _write_pending(pending: PendingRetry) -> Data:
    return {
        "transition": pending.transition,
        "attempts": pending.attempts,
        "feedback": pending.feedback,
        "since": pending.since.isoformat(),
        "retry_at": pending.retry_at.isoformat(),
    }


def _read_pending(data: object) -> PendingRetry:
    transition, attempts, feedback, since, retry_at = _take(data, _PENDING)
    return PendingRetry(transition, attempts, feedback, _time(since), _time(retry_at))


def _take(data: object, shape: _Shape) -> list[Any]:
    """The parts of a map that has exactly these, of these kinds."""
    parts = cast("Data", data if isinstance(data, dict) else {})
    if parts.keys() != shape.keys():
        raise ValueError(f"it should have the parts {', '.join(shape)}, and no other")
    for name, kind in shape.items():
        part = parts[name]
        if not isinstance(part, kind) or (kind is int and isinstance(part, bool)):
            raise TypeError(f"its {name} is {name_of(part)}")
    return [parts[name] for name in shape]


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"the time {text!r} has no zone")
    return time
