"""What the exit code of the command says."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    WORKFLOW_FAILED = 1
    BAD_USE = 2
    INTERRUPTED = 3
    CHECKPOINT_ERROR = 4
