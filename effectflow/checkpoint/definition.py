"""The definition of a workflow. A resume compares it with that of the run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from effectflow.checkpoint.errors import DefinitionChanged


@dataclass(frozen=True)
class Definition:
    """The name, version and kind of a workflow, its declared steps, and how these are connected.

    Attributes:
        steps: the names of the declared steps, in order. Empty for workflows written as code, which are
            checked during replay.
        structure: readable lines about which step may follow which, such as `draft -> review`.
            Empty for lists of steps and for code.
    """

    name: str
    version: str
    kind: str
    steps: tuple[str, ...] = ()
    structure: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: dict[str, object] = {"name": self.name, "version": self.version}
        for what, text in given.items():
            if not isinstance(text, str):
                raise TypeError(f"the {what} of a workflow is text, not {text!r}")

    @property
    def is_list(self) -> bool:
        """Whether the steps run one after another, in their order."""
        return bool(self.steps) and not self.structure

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change when the definition changes."""
        text = "\x00".join((self.name, self.version, self.kind, *self.steps))
        if self.structure:
            text = "\x00\x00".join((text, *self.structure))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def changed_since(self, started: Definition, run_id: str) -> DefinitionChanged | None:
        """Return the difference from the definition with which a run was started, or None."""
        if self.fingerprint == started.fingerprint:
            return None
        added, removed, renamed = _compare(started.steps, self.steps)
        detail = ""
        if self.version != started.version:
            detail = f"its version was {started.version!r} and is {self.version!r}"
        elif not (added or removed or renamed):
            detail = self._restructured(started)
        return DefinitionChanged(
            run_id, self.name, added=added, removed=removed, renamed=renamed, detail=detail
        )

    def _restructured(self, started: Definition) -> str:
        """Return the difference from a definition with the same steps."""
        new, old = self.structure, started.structure
        if set(new) == set(old):
            return (
                f"its {'edges' if self.steps == started.steps else 'steps'} come in another order"
            )
        changes = [f"{line!r} was added" for line in new if line not in old]
        changes += [f"{line!r} was removed" for line in old if line not in new]
        return "; ".join(changes)


def _compare(
    old: Sequence[str], new: Sequence[str]
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Return the added, removed and renamed steps. A renamed step has another step in its place."""
    # Imported late: it takes 2 ms, and most programs never need it.
    from difflib import SequenceMatcher

    renamed: list[tuple[str, str]] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag == "replace" and i2 - i1 == j2 - j1:
            pairs = zip(old[i1:i2], new[j1:j2], strict=True)
            renamed += [(was, now) for was, now in pairs if was not in new and now not in old]
    sources, targets = {was for was, _ in renamed}, {now for _, now in renamed}
    added = [name for name in new if name not in old and name not in targets]
    removed = [name for name in old if name not in new and name not in sources]
    return added, removed, renamed
