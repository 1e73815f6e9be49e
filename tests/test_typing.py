"""pyright and mypy accept the code of README.md and docs/, the examples, and tests/typing.

They find the moved names of CHANGELOG.md where it says, and no longer where they were.

The files of tests/typing mark every line that must be rejected with the rule that rejects it. Both
checkers report a mark that nothing needed, so a line that is wrongly accepted fails here too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.changelog import moved_names
from tests.pages import PAGES, ROOT, examples

pytestmark = pytest.mark.exhaustive  # `.ci/run` runs them each time, beside the other checkers


@pytest.fixture
def pages_as_modules(tmp_path: Path) -> Path:
    """A folder with one module for each page: its blocks, at the line numbers that they have there."""
    for page in PAGES:
        module: list[str] = []
        for example in examples(page):
            lines = example.split("\n")
            module += lines[len(module) :]
        if module:
            name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_").lower()
            (tmp_path / f"{name}.py").write_text("\n".join(module))
    (tmp_path / "changelog.py").write_text("\n".join(imports_of_moved_names()))
    return tmp_path


def imports_of_moved_names() -> Iterator[str]:
    """Yield an import of each moved name from where it is, and one to be rejected, from where it was."""
    rejected = (
        "# type: ignore[attr-defined, no-redef]  "
        "# pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]"
    )
    for name, before, now in moved_names():
        yield f"from {now} import {name} as {name}"
        if find_spec(before) is not None:
            yield f"from {before} import {name} as {name}  {rejected}"


def check(*checker: str) -> None:
    """Run a type checker, which must accept everything."""
    checked = subprocess.run(
        [sys.executable, "-m", *checker],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if checked.returncode != 0:
        pytest.fail(checked.stdout + checked.stderr, pytrace=False)


def test_pyright_accepts_the_pages_and_the_cases(pages_as_modules: Path) -> None:
    # pyright checks the files of one folder.
    shutil.copytree(ROOT / "tests" / "typing", pages_as_modules, dirs_exist_ok=True)
    config = pages_as_modules / "pyrightconfig.json"
    options = json.loads(config.read_text()) | {"extraPaths": [str(ROOT)]}
    config.write_text(json.dumps(options))

    check("pyright", "--pythonpath", sys.executable, "--project", str(pages_as_modules))


def test_mypy_accepts_the_pages_and_the_examples_and_the_cases(pages_as_modules: Path) -> None:
    check("mypy", "--strict", str(pages_as_modules), "examples", "tests/typing")
