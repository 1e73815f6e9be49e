"""`Checkpoint`: where a run stands, as one value that can be written down and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.entries import Finished, HeadState, Interrupted
from effectflow.checkpoint.entry_format import read_entry, write_entry
from effectflow.checkpoint.errors import CorruptCheckpoint, UnsupportedVersion
from effectflow.checkpoint.format_versions import format_version, migrated
from effectflow.checkpoint.shapes import (
    LIST,
    MAP,
    MAP_OR_NULL,
    NUMBER,
    TEXT,
    VALUE,
    WHOLE,
    Shape,
    check_shape,
    texts,
)
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import (
    MalformedValue,
    Tree,
    decode_compact,
    decode_indented_json,
    encode_compact,
    encode_json,
)

__all__ = ["Checkpoint", "CompletedStep", "HistoryItem", "Metadata"]


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that is done. `duration` is in seconds, `completed_at` in seconds since the epoch."""

    step: str
    output: Tree
    attempt: int
    duration: float
    completed_at: float


@dataclass(frozen=True, slots=True)
class HistoryItem:
    """How one step ended, in the order in which the steps were first begun.

    A step that failed and was run again by a resume has the outcome of its last attempt only, so a
    resumed run has the history of one that was never stopped.
    """

    step: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a run has cost so far.

    Attributes:
        attempts: how often each step was begun, in the order in which they were last begun.
        resumes: how often the run was taken up again.
        entries: how many entries its journal has.
    """

    attempts: dict[str, int] = field(default_factory=dict[str, int])
    resumes: int = 0
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run stands: everything that its journal says, folded into one value.

    Values are trees of plain data, as they are saved; the workflow that owns the run gives them their
    types back. `state` is None until the first step begins; `finished` is None until the run ends.
    """

    version: int
    run_id: str
    workflow: str
    kind: str
    definition: Definition
    initial_state: Tree
    current_state: Tree
    state: HeadState | None
    completed_steps: tuple[CompletedStep, ...]
    history: tuple[HistoryItem, ...]
    metadata: Metadata
    context: Tree
    created_at: float
    updated_at: float
    finished: Finished | None = None

    @property
    def id(self) -> str:
        """Names this state of this run: the run and the number of its entries."""
        return f"{self.run_id}@{self.metadata.entries}"

    @property
    def status(self) -> RunStatus:
        """Where the run stands, in one word."""
        if self.finished is not None:
            return self.finished.status
        return RunStatus.INTERRUPTED if isinstance(self.state, Interrupted) else RunStatus.RUNNING

    @property
    def digest(self) -> str:
        """The SHA-256 of the checkpoint, in hex."""
        return _digest(_write(self))

    def to_tree(self) -> dict[str, Tree]:
        """The checkpoint as plain data, with its digest."""
        tree = _write(self)
        return {**tree, "digest": _digest(tree)}

    def to_json(self) -> str:
        """The checkpoint as JSON for people to read; `from_json` reads it back."""
        return orjson.dumps(self.to_tree(), option=orjson.OPT_INDENT_2).decode()

    def to_binary(self) -> bytes:
        """The checkpoint in few bytes; `from_binary` reads it back."""
        return encode_compact(self.to_tree())

    @staticmethod
    def from_json(text: str) -> Checkpoint:
        """The checkpoint that `to_json` was called on.

        Raises CorruptCheckpoint for any other text, and UnsupportedVersion for what a newer effectflow
        wrote.
        """
        return _read_with(decode_indented_json, text.encode("utf-8", "surrogatepass"))

    @staticmethod
    def from_binary(data: bytes) -> Checkpoint:
        """The checkpoint that `to_binary` was called on.

        Raises CorruptCheckpoint for any other data, and UnsupportedVersion for what a newer effectflow
        wrote.
        """
        return _read_with(decode_compact, data)


def _write(checkpoint: Checkpoint) -> dict[str, Tree]:
    definition, finished = checkpoint.definition, checkpoint.finished
    return {
        "version": checkpoint.version,
        "id": checkpoint.id,
        "run_id": checkpoint.run_id,
        "workflow": checkpoint.workflow,
        "kind": checkpoint.kind,
        "status": str(checkpoint.status),
        "definition": {
            "version": definition.version,
            "fingerprint": definition.fingerprint,
            "steps": list(definition.steps),
            **({"structure": list(definition.structure)} if definition.structure else {}),
        },
        "initial_state": checkpoint.initial_state,
        "current_state": checkpoint.current_state,
        "state": None if checkpoint.state is None else write_entry(checkpoint.state),
        "completed_steps": [_plain(step) for step in checkpoint.completed_steps],
        "history": [_plain(item) for item in checkpoint.history],
        "metadata": _plain(checkpoint.metadata),
        "context": checkpoint.context,
        "created_at": checkpoint.created_at,
        "updated_at": checkpoint.updated_at,
        "finished": None if finished is None else write_entry(finished),
    }


def _plain(value: Any) -> Tree:
    names: tuple[str, ...] = value.__slots__
    return {name: getattr(value, name) for name in names}


def _digest(tree: dict[str, Tree]) -> str:
    return hashlib.sha256(encode_json(tree)).hexdigest()


def _read_with(decode: Callable[[bytes], Tree], data: bytes) -> Checkpoint:
    try:
        tree: Any = decode(data)
        if tree["version"] > format_version():
            raise UnsupportedVersion("the checkpoint", tree["version"], format_version())
        if tree.pop("digest") != _digest(tree):
            raise ValueError("its digest is wrong")
        tree = _in_present_version(tree)
        checkpoint = _read(tree)
        if _write(checkpoint) != tree:
            raise ValueError("its parts contradict one another")
    except (MalformedValue, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"it is none that was saved ({error!r})"
        raise CorruptCheckpoint("", reason, what="the checkpoint") from error
    return checkpoint


def _in_present_version(tree: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of some version as the present one would have written it."""
    version = tree["version"]
    if version.__class__ is not int or version < 1:
        raise ValueError(f"version is {version!r}")
    entries = {
        name: migrated(tree[name], version)
        for name in ("state", "finished")
        if tree[name] is not None
    }
    return {**tree, **entries, "version": format_version()}


def _read(tree: dict[str, Any]) -> Checkpoint:
    check_shape(tree, _CHECKPOINT)
    kind, definition = tree["kind"], tree["definition"]
    check_shape(definition, _DEFINITION, {"structure": LIST})
    steps, structure = texts(definition["steps"]), texts(definition.get("structure", ()))
    for step in tree["completed_steps"]:
        check_shape(step, _COMPLETED_STEP)
    for item in tree["history"]:
        check_shape(item, _HISTORY_ITEM)
    check_shape(tree["metadata"], _METADATA)
    check_shape(tree["metadata"]["attempts"], dict.fromkeys(tree["metadata"]["attempts"], WHOLE))
    return Checkpoint(
        version=tree["version"],
        run_id=tree["run_id"],
        workflow=tree["workflow"],
        kind=kind,
        definition=Definition(tree["workflow"], definition["version"], kind, steps, structure),
        initial_state=tree["initial_state"],
        current_state=tree["current_state"],
        state=_read_entry_of(HeadState, tree["state"]),
        completed_steps=tuple(CompletedStep(**step) for step in tree["completed_steps"]),
        history=tuple(HistoryItem(**item) for item in tree["history"]),
        metadata=Metadata(**tree["metadata"]),
        context=tree["context"],
        created_at=tree["created_at"],
        updated_at=tree["updated_at"],
        finished=_read_entry_of(Finished, tree["finished"]),
    )


_CHECKPOINT: Shape = {
    "version": WHOLE,
    "id": TEXT,
    "run_id": TEXT,
    "workflow": TEXT,
    "kind": TEXT,
    "status": TEXT,
    "definition": MAP,
    "initial_state": VALUE,
    "current_state": VALUE,
    "state": MAP_OR_NULL,
    "completed_steps": LIST,
    "history": LIST,
    "metadata": MAP,
    "context": VALUE,
    "created_at": NUMBER,
    "updated_at": NUMBER,
    "finished": MAP_OR_NULL,
}
_DEFINITION: Shape = {"version": TEXT, "fingerprint": TEXT, "steps": LIST}
_COMPLETED_STEP: Shape = {
    "step": TEXT,
    "output": VALUE,
    "attempt": WHOLE,
    "duration": NUMBER,
    "completed_at": NUMBER,
}
_HISTORY_ITEM: Shape = {"step": TEXT, "outcome": TEXT, "detail": TEXT}
_METADATA: Shape = {"attempts": MAP, "resumes": WHOLE, "entries": WHOLE}


def _read_entry_of(kind: Any, tree: dict[str, Any] | None) -> Any:
    if tree is None:
        return None
    entry = read_entry(tree)
    if not isinstance(entry, kind):
        raise ValueError(f"an entry {tree['entry']!r} is out of place")
    return entry
