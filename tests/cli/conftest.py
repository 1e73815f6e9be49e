"""The command as a user runs it: a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "effectflow"]


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder in which the commands run."""
    return tmp_path


@pytest.fixture
def effectflow(folder: Path) -> Callable[..., Ran]:
    """Runs `effectflow` with arguments and waits for its end."""

    def run(*arguments: str) -> Ran:
        ran = subprocess.run(
            [*COMMAND, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "TERM": "dumb"},
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return run
