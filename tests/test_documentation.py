"""Every example of README.md, of docs/ and of docstrings runs as it stands."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import effectflow

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

PYTHON_BLOCK = re.compile(
    r"^(?P<skipped><!-- no-test: \S[^\n]*-->\n\n?)?```python\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def examples(page: Path) -> Iterator[str]:
    """The python blocks of a page, each moved down to the lines where the page has it.

    So a traceback, and `inspect.getsource`, lead to the page itself.
    """
    text = page.read_text(encoding="utf-8")
    for block in PYTHON_BLOCK.finditer(text):
        if not block["skipped"]:
            yield "\n" * text.count("\n", 0, block.start("code")) + block["code"]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in PAGES
        if any(True for _ in examples(page))
    ],
)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Registered under its name, since dataclasses and type hints are looked up by module.
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path)

    for example in examples(page):
        exec(compile(example, str(page), "exec", dont_inherit=True), main.__dict__)


MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(effectflow.__path__, "effectflow.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_readme_has_an_example() -> None:
    assert any(True for _ in examples(ROOT / "README.md"))
