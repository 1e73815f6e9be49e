"""What a workflow is made of, so that a resume notices when the code has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from effectflow.checkpoint.errors import DefinitionChanged

__all__ = ["Definition"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A workflow's name, version, kind, and the names of its steps in order.

    `steps` is complete for a list of steps; for a workflow written as code it holds the steps that
    its function names.
    """

    name: str
    version: str
    kind: str
    steps: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change when anything of the definition does."""
        text = "\x00".join((self.name, self.version, self.kind, *self.steps))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def changed_since(self, started: Definition, run_id: str) -> DefinitionChanged | None:
        """What is different from the definition that a run was started with, or None."""
        if self.fingerprint == started.fingerprint:
            return None
        added, removed, renamed = _compare(started.steps, self.steps)
        detail = ""
        if self.version != started.version:
            detail = f"its version was {started.version!r} and is {self.version!r}"
        elif not (added or removed or renamed):
            detail = "its steps come in another order"
        return DefinitionChanged(
            run_id, self.name, added=added, removed=removed, renamed=renamed, detail=detail
        )


def _compare(
    old: Sequence[str], new: Sequence[str]
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Steps added, removed and renamed. A rename is a step that is gone with another in its place."""
    gone = set(old) - set(new)
    come = set(new) - set(old)
    renamed: list[tuple[str, str]] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag == "replace" and i2 - i1 == j2 - j1:
            pairs = zip(old[i1:i2], new[j1:j2], strict=True)
            renamed += [(was, now) for was, now in pairs if was in gone and now in come]
    gone -= {was for was, _ in renamed}
    come -= {now for _, now in renamed}
    return (
        [name for name in new if name in come],
        [name for name in old if name in gone],
        renamed,
    )
