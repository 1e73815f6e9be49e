"""The command line, run in the process of the tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import typer.main

from effectflow.cli.commands import make_app

ROOT = Path(__file__).parents[2]

EXAMPLES = f"{ROOT / 'examples'}{os.sep}"

COMMAND = ["-m", "effectflow"]
"""The command line as a process, for tests of kills and signals. It needs `ENVIRONMENT`."""

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command: TypeAlias = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder of the commands. The modules in it are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # Other tests import the examples, which may have the names of modules in this folder.
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", "")).startswith(EXAMPLES):
            monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@cache
def command_line() -> Any:
    """Return the command line. typer takes longer to make it than most commands take."""
    return typer.main.get_command(make_app())


@pytest.fixture
def effectflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `effectflow` with arguments, in `folder`, on a terminal of 200 columns without colours."""
    for name in [name for name in os.environ if name.startswith("EFFECTFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdin", StringIO())

    def run(*arguments: str) -> Ended:
        out = TextIOWrapper(BytesIO(), "utf-8")
        err = TextIOWrapper(BytesIO(), "utf-8")
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            command_line().main(list(arguments), prog_name="effectflow")
        for stream in (out, err):
            stream.seek(0)
        return Ended(int(ended.value.code or 0), out.read(), err.read())

    return run
