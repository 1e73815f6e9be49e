"""What a workflow is made of, so that a resume notices when the code has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from effectflow.checkpoint.errors import DefinitionChanged

__all__ = ["Definition"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A workflow's name, version, kind, the names of its steps, and how these hang together.

    Attributes:
        steps: in order. They are complete for a list of steps; for a workflow written as code they are
            those that its function names.
        structure: lines for people that say which step may follow which, as in `draft -> review`. Empty
            for a workflow whose steps follow one another as they come, or as its code says.
    """

    name: str
    version: str
    kind: str
    steps: tuple[str, ...] = ()
    structure: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change when anything of the definition does."""
        text = "\x00".join((self.name, self.version, self.kind, *self.steps))
        if self.structure:
            text = "\x00\x00".join((text, *self.structure))
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
            detail = _restructured(started, self)
        return DefinitionChanged(
            run_id, self.name, added=added, removed=removed, renamed=renamed, detail=detail
        )


def _restructured(old: Definition, new: Definition) -> str:
    """What is different between two definitions that have the same steps."""
    if set(old.structure) == set(new.structure):
        return f"its {'edges' if old.steps == new.steps else 'steps'} come in another order"
    changes = [f"{line!r} was added" for line in new.structure if line not in old.structure]
    changes += [f"{line!r} was removed" for line in old.structure if line not in new.structure]
    return "; ".join(changes)


def _compare(
    old: Sequence[str], new: Sequence[str]
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Steps added, removed and renamed. A rename is a step that is gone with another in its place."""
    # Most programs never come here, and importing it takes 2 ms.
    from difflib import SequenceMatcher

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
