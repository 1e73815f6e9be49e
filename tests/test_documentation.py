"""Every example in README.md, docs/ and docstrings runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import effectflow
from effectflow.checkpoint import (
    CheckpointError,
    Entry,
    ErrorRecord,
    Lease,
    Message,
    RunSummary,
)
from tests.pages import PAGES, ROOT, examples


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


def fields_in_format(kind: type[Any]) -> list[str]:
    """Return the fields of a part of the format as its page names them: `?` if one may be absent."""
    return [one.name + "?" * (one.default is not MISSING) for one in fields(kind)]


def test_format_page_lists_every_field_of_every_entry() -> None:
    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (`.*`) \| ", page, re.MULTILINE)
    documented = {name: re.findall(r"`(\w+\??)`", names) for name, names in rows}

    entries = {
        re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): fields_in_format(kind)
        for kind in get_args(Entry)
    }
    assert documented == entries


def test_format_page_lists_every_field_of_an_error() -> None:
    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    [row] = re.findall(r"^\| `error` \| (`.*) \|$", page, re.MULTILINE)
    without_remarks = re.sub(r" \([^)]*\)", "", row)

    assert re.findall(r"`(\w+\??)`", without_remarks) == fields_in_format(ErrorRecord)


@pytest.mark.parametrize(
    ("name", "kind"), [("summary", RunSummary), ("lease", Lease), ("message", Message)]
)
def test_format_page_lists_what_every_store_keeps(name: str, kind: type[Any]) -> None:
    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    [sentence] = re.findall(rf"A \*{name}\* has (.*?)[.;:]\s", page, re.DOTALL)
    documented = re.findall(r"`(\w+)`", sentence)

    kept = [one.name for one in fields(kind) if one.name != "run_id"]
    assert documented == kept


MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(effectflow.__path__, "effectflow.")
    if not module.name.endswith("__main__")
)


WITH_EXAMPLES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted((ROOT / "effectflow").rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    ran = doctest.testmod(importlib.import_module(name))

    assert ran.failed == 0
    assert ran.attempted > 0


@pytest.mark.parametrize("folder", ["checkpoint", "runs", "builders"])
def test_contributing_says_what_is_in_each_module(folder: str) -> None:
    tables = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

    modules = {path.name for path in (ROOT / "effectflow" / folder).glob("[a-z]*.py")}

    assert {name for name in modules if f"{name}`" not in tables} == set()


LINKED_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]*)\)")


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield the links of a page to files of the project: as written, the file, and the anchor."""
    for link in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        target = link["target"]
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield target, (page.parent / path).resolve() if path else page, anchor


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found: set[str] = set()
    headings = re.findall(
        r"^#+ (.+)$", CODE.sub(inline, page.read_text(encoding="utf-8")), re.MULTILINE
    )
    for heading in headings:
        anchor = plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = 0
        while anchor in found:
            count += 1
            anchor = f"{plain}-{count}"
        found.add(anchor)
    return found


def inline(code: re.Match[str]) -> str:
    """Return code within a line without its quotes, and nothing for a block."""
    return "" if code[0].startswith("```") else code[0].strip("`")


@pytest.mark.parametrize("page", LINKED_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        target
        for target, file, anchor in links(page)
        if not file.exists() or (anchor and anchor not in anchors(file))
    ]
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    left = [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page.is_dir():
            page /= "README.md"
        if page.suffix == ".md" and page.exists() and page not in reached:
            reached.add(page)
            left += [file for _, file, _ in links(page)]
    assert set(PAGES) - reached == set()


def test_readme_has_an_example() -> None:
    assert any(True for _ in examples(ROOT / "README.md"))


def classes_under(base: type[Exception]) -> set[str]:
    """Return the names of the library's classes that derive from this one."""
    found: set[str] = set()
    for derived in base.__subclasses__():
        if derived.__module__.startswith("effectflow."):
            found |= {derived.__name__} | classes_under(derived)
    return found


def test_every_checkpoint_error_has_a_section_of_its_own() -> None:
    for name in MODULES:
        importlib.import_module(name)
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    sections = re.findall(
        r"^## `(\w+)`\n\n\*\*What happened\.\*\* .+?\n\n\*\*What to do\.\*\* ",
        page,
        re.MULTILINE | re.DOTALL,
    )

    assert sorted(sections) == sorted(classes_under(CheckpointError))
