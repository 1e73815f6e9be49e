"""The ids of runs: which ones are allowed, and random ones."""

from __future__ import annotations

import re
from os import urandom

from effectflow.checkpoint.values import NO_TYPES, to_tree
from effectflow.effects.arguments import check_type

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""The control characters and line breaks of Unicode."""


def check_new_run_id(run_id: str | None) -> None:
    """Raise TypeError for a run id that is not text, and ValueError for one that cannot be seen.

    It applies where a caller names a run to create, or names none. Stored runs may have other ids.
    """
    if run_id is None:
        return
    check_type(run_id, str, "a run id is text")
    if not run_id.strip() or _CONTROL.search(run_id):
        raise ValueError(
            f"{run_id!r} cannot be the id of a run: use text with at least one visible character and "
            "without line breaks and other control characters, such as 'order-17'"
        )


def check_run_id(run_id: str) -> None:
    """Raise for an id that stores would reject: TypeError if it is not text, NotSerializable if no
    encoding can represent it.
    """
    check_type(run_id, str, "a run id is text")
    to_tree(run_id, path="run_id", types=NO_TYPES)


def new_run_id(workflow: str) -> str:
    """Return a random id for a run."""
    return f"{_CONTROL.sub('_', workflow)}-{urandom(6).hex()}"
