"""Entries as bytes: JSON or CBOR, told apart by their first byte.

The names on disk are part of the format and never change their meaning: see `FORMAT_VERSION`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from effectflow.checkpoint.entries import (
    Arguments,
    BeforeStep,
    Completed,
    Entry,
    ErrorRecord,
    Failed,
    Finished,
    Interrupted,
    Recorded,
    Resumed,
    Started,
)
from effectflow.checkpoint.errors import CorruptCheckpoint, UnsupportedVersion
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import (
    MalformedValue,
    Tree,
    decode_cbor,
    decode_json,
    encode_cbor,
    encode_json,
)

__all__ = [
    "FORMAT_VERSION",
    "Format",
    "decode_entry",
    "encode_entry",
    "read_entry",
    "write_entry",
]

FORMAT_VERSION = 1

Format: TypeAlias = Literal["json", "cbor"]


def encode_entry(entry: Entry, format: Format = "json") -> bytes:
    """An entry as bytes."""
    tree = write_entry(entry)
    return encode_json(tree) if format == "json" else encode_cbor(tree)


def decode_entry(data: bytes, run_id: str, sequence: int) -> Entry:
    """The entry in bytes that have this place in a run.

    Fails with CorruptCheckpoint if there is none, and with UnsupportedVersion if a newer effectflow
    wrote it.
    """
    is_json = data[:1] == b"{"
    try:
        tree = cast(Any, decode_json(data) if is_json else decode_cbor(data))
        if (encode_json(tree) if is_json else encode_cbor(tree)) != data:
            # A key that is there twice, blanks, another way to write a number.
            raise MalformedValue("$", "it is not in the form that entries are written in")
        return read_entry(tree)
    except MalformedValue as error:
        raise CorruptCheckpoint(run_id, str(error), sequence=sequence) from error
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it is no entry that this version knows ({error!r})"
        raise CorruptCheckpoint(run_id, reason, sequence=sequence) from error


def read_entry(tree: Mapping[str, Any]) -> Entry:
    """The entry in plain data. Raises KeyError, TypeError or ValueError if there is none."""
    form = _FORMS[tree["entry"]]
    if form.read is _read_started:
        _check_version(tree)
    _check(tree, form.required, form.optional)
    return form.read(tree)


def write_entry(entry: Entry) -> Tree:
    """An entry as plain data."""
    match entry:
        case BeforeStep(step, attempt, arguments, at):
            tree: dict[str, Tree] = {
                "entry": "before_step", "step": step, "attempt": attempt, "at": at,
            }  # fmt: skip
            if arguments is not None:
                tree["digest"] = arguments.digest
                tree["arguments"] = arguments.shown
            return tree
        case Completed(step, output, duration, at):
            return {
                "entry": "completed", "step": step, "output": output, "duration": duration, "at": at,
            }  # fmt: skip
        case Recorded(step, value, at, is_failure):
            return {
                "entry": "recorded", "step": step, "value": value, "at": at, "failure": is_failure,
            }  # fmt: skip
        case Failed(step, error, retryable, at):
            return {
                "entry": "failed", "step": step, "error": _write_error(error),
                "retryable": retryable, "at": at,
            }  # fmt: skip
        case Interrupted(step, in_progress, reason, at):
            return {
                "entry": "interrupted", "step": step, "in_progress": in_progress,
                "reason": reason, "at": at,
            }  # fmt: skip
        case Resumed(owner, at, version, steps, structure):
            tree = {"entry": "resumed", "owner": owner, "at": at}
            if version is not None:
                tree |= {"version": version, "steps": list(steps), **_structure(structure)}
            return tree
        case Finished(status, output, error, at):
            return {
                "entry": "finished", "status": str(status), "output": output,
                "error": None if error is None else _write_error(error), "at": at,
            }  # fmt: skip
        case Started():
            return {
                "entry": "started", "format": entry.format, "run_id": entry.run_id,
                "workflow": entry.workflow, "kind": entry.kind, "version": entry.version,
                "fingerprint": entry.fingerprint, "steps": list(entry.steps),
                "input": entry.input, "context": entry.context, "at": entry.at,
                **_structure(entry.structure),
            }  # fmt: skip


def _structure(lines: Sequence[str]) -> dict[str, Tree]:
    return {"structure": list(lines)} if lines else {}


def _write_error(error: ErrorRecord) -> Tree:
    return {
        "type": error.type, "message": error.message,
        "value": error.value, "traceback": error.traceback,
    }  # fmt: skip


def _check_version(tree: Mapping[str, Any]) -> None:
    version = tree["format"]
    if version.__class__ is not int or version < 1:
        raise ValueError(f"format is {version!r}")
    if version > FORMAT_VERSION:
        raise UnsupportedVersion(f"run {tree['run_id']!r}", version, FORMAT_VERSION)


def _check(tree: Mapping[str, Any], required: _Kinds, optional: _Kinds) -> None:
    """Refuse a map that lacks a key, has another, or has a value of another kind at one."""
    for key, kinds in required.items():
        if tree[key].__class__ not in kinds:
            raise TypeError(f"{key} is a {type(tree[key]).__name__}")
    if len(tree) == len(required):
        return
    for key in tree.keys() - required.keys():
        if key not in optional:
            raise ValueError(f"{key} is no part of it")
        if tree[key].__class__ not in optional[key]:
            raise TypeError(f"{key} is a {type(tree[key]).__name__}")


def _texts(items: Sequence[object]) -> tuple[str, ...]:
    for item in items:
        if item.__class__ is not str:
            raise TypeError(f"{item!r} is no name")
    return cast("tuple[str, ...]", tuple(items))


def _read_error(tree: Mapping[str, Any]) -> ErrorRecord:
    _check(tree, _ERROR, _NOTHING)
    return ErrorRecord(tree["type"], tree["message"], tree["value"], tree["traceback"])


def _read_started(tree: Mapping[str, Any]) -> Started:
    return Started(
        run_id=tree["run_id"],
        workflow=tree["workflow"],
        kind=tree["kind"],
        version=tree["version"],
        fingerprint=tree["fingerprint"],
        steps=_texts(tree["steps"]),
        input=tree["input"],
        context=tree["context"],
        format=tree["format"],
        at=tree["at"],
        structure=_texts(tree.get("structure", ())),
    )


def _read_resumed(tree: Mapping[str, Any]) -> Resumed:
    if "version" not in tree:
        return Resumed(tree["owner"], tree["at"])
    steps, structure = _texts(tree["steps"]), _texts(tree.get("structure", ()))
    return Resumed(tree["owner"], tree["at"], tree["version"], steps, structure)


def _read_before_step(tree: Mapping[str, Any]) -> BeforeStep:
    has_arguments = "digest" in tree or "arguments" in tree
    arguments = Arguments(tree["digest"], tree["arguments"]) if has_arguments else None
    return BeforeStep(tree["step"], tree["attempt"], arguments, tree["at"])


def _read_finished(tree: Mapping[str, Any]) -> Finished:
    error = None if tree["error"] is None else _read_error(tree["error"])
    return Finished(RunStatus(tree["status"]), tree["output"], error, tree["at"])


_Kinds: TypeAlias = Mapping[str, frozenset[type]]

_NOTHING: _Kinds = {}

_TEXT = frozenset({str})
_TEXT_OR_NULL = frozenset({str, type(None)})
_NUMBER = frozenset({float, int})
_WHOLE = frozenset({int})
_YES_OR_NO = frozenset({bool})
_LIST = frozenset({list})
_MAP = frozenset({dict})
_MAP_OR_NULL = frozenset({dict, type(None)})
_VALUE = frozenset({str, int, float, bool, list, dict, type(None)})


class _Form(NamedTuple):
    """How an entry of one name is read, and what it has on disk."""

    read: Callable[[Mapping[str, Any]], Entry]
    required: _Kinds
    optional: _Kinds


def _form(
    read: Callable[[Mapping[str, Any]], Entry], required: _Kinds, optional: _Kinds = _NOTHING
) -> _Form:
    return _Form(read, {"entry": _TEXT, "at": _NUMBER, **required}, optional)


_ERROR: _Kinds = {"type": _TEXT, "message": _TEXT, "value": _VALUE, "traceback": _TEXT_OR_NULL}

_FORMS: Mapping[str, _Form] = {
    "started": _form(
        _read_started,
        {
            "format": _WHOLE, "run_id": _TEXT, "workflow": _TEXT, "kind": _TEXT,
            "version": _TEXT, "fingerprint": _TEXT, "steps": _LIST,
            "input": _VALUE, "context": _VALUE,
        },
        {"structure": _LIST},
    ),
    "resumed": _form(
        _read_resumed,
        {"owner": _TEXT},
        {"version": _TEXT, "steps": _LIST, "structure": _LIST},
    ),
    "before_step": _form(
        _read_before_step,
        {"step": _TEXT, "attempt": _WHOLE},
        {"digest": _TEXT, "arguments": _TEXT},
    ),
    "completed": _form(
        lambda tree: Completed(tree["step"], tree["output"], tree["duration"], tree["at"]),
        {"step": _TEXT, "output": _VALUE, "duration": _NUMBER},
    ),
    "recorded": _form(
        lambda tree: Recorded(tree["step"], tree["value"], tree["at"], tree["failure"]),
        {"step": _TEXT, "value": _VALUE, "failure": _YES_OR_NO},
    ),
    "failed": _form(
        lambda tree: Failed(
            tree["step"], _read_error(tree["error"]), tree["retryable"], tree["at"]
        ),
        {"step": _TEXT, "error": _MAP, "retryable": _YES_OR_NO},
    ),
    "interrupted": _form(
        lambda tree: Interrupted(
            tree["step"], tree["in_progress"], tree["reason"], tree["at"]
        ),
        {"step": _TEXT_OR_NULL, "in_progress": _YES_OR_NO, "reason": _TEXT},
    ),
    "finished": _form(
        _read_finished,
        {"status": _TEXT, "output": _VALUE, "error": _MAP_OR_NULL},
    ),
}  # fmt: skip
