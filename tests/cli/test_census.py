"""The census: what it counts, and that its report is the same in any order."""

from __future__ import annotations

import ast
import asyncio
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from effectflow.cli.census import Report, add, discover_files, measure, to_text


def measured(folder: Path, source: str | bytes) -> Report:
    data = source if isinstance(source, bytes) else source.encode()
    (folder / "m.py").write_bytes(data)
    return measure(folder, "m.py")


@pytest.mark.parametrize(
    ("branch", "count"),
    [
        ("if a: pass", 1),
        ("if a: pass\n    elif b: pass\n    else: pass", 2),
        ("for x in a: pass", 1),
        ("while a: pass", 1),
        ("try: pass\n    except E: pass\n    except F: pass", 2),
        ("return a and b", 1),
        ("return a if b else c", 1),
        ("match a:\n        case 1: pass\n        case _: pass", 2),
        ("with a: pass", 0),
        ("def inner():\n        if a: pass", 1),
    ],
)
def test_functions_with_many_branches_are_named(tmp_path: Path, branch: str, count: int) -> None:
    many = "    if x: pass\n" * 10
    found = measured(tmp_path, f"def f(a, b, c):\n{many}    {branch}\n")

    assert found["Functions with the most branches"] == {"m.py:1 f": 10 + count}


def test_names_and_imports_are_read_in_the_encoding_of_the_file(tmp_path: Path) -> None:
    source = (
        "# -*- coding: latin-1 -*-\nimport os.path, sys\nfrom json import dumps\nfrom . import x\n"
        "class A:\n  def caf\xe9(self):\n    async def inner(): pass\n"
    ) + "    if x: pass\n" * 10
    found = measured(tmp_path, source.encode("latin-1"))

    assert found["Most imported modules"] == {"json": 1, "os": 1, "sys": 1}
    assert found["Functions with the most branches"] == {"m.py:6 caf\xe9": 10}
    counted = {"files": 1, "bytes": len(source), "lines": 17, "functions": 2, "classes": 1}
    assert found["Totals"] == counted


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (b"def f(:\n", "invalid syntax"),
        (b"x = (\n", "never closed"),
        (b"\xff\xfe\n", "codec"),
        (b"# coding: nonsense\n", "nonsense"),
        (b"x = 1\x00\n", "null"),
        (b"x = " + b"(" * 500 + b")" * 500, "parenthes"),
        (b"x = " + b"-" * 200_000 + b"1", "Error"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_a_finding(
    tmp_path: Path, source: bytes, problem: str
) -> None:
    found = measured(tmp_path, source)

    [finding] = found["Files that could not be parsed"]
    assert finding.startswith("m.py: ")
    assert problem in finding
    assert str(tmp_path) not in finding


def test_a_missing_file_is_a_finding(tmp_path: Path) -> None:
    found = measure(tmp_path, "gone.py")
    assert found["Files that could not be parsed"] == {"gone.py: FileNotFoundError": 1}


def discovered(folder: Path) -> list[str]:
    return discover_files(str(folder)).run_sync(object()).unwrap()


def test_only_regular_files_of_the_folder_itself_are_discovered(tmp_path: Path) -> None:
    for name in ("b.py", "a/c.py", ".git/y.py", "site-packages/z.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / os.fsdecode(b"\xff\xfe.py")).write_text("x = 1\n")

    assert discovered(tmp_path) == ["a/c.py", "b.py"]


def test_a_folder_without_python_files_is_a_failure(tmp_path: Path) -> None:
    failure = discover_files(str(tmp_path)).run_sync(object()).failure()
    assert "found no Python file" in str(failure)


COUNTS = st.dictionaries(st.text("abc/", min_size=1), st.integers(0, 9))
REPORTS = st.lists(st.fixed_dictionaries({"Totals": COUNTS, "Most imported modules": COUNTS}))


@given(REPORTS, st.randoms())
def test_the_report_does_not_depend_on_the_order_of_the_files(
    reports: list[Report], chance: random.Random
) -> None:
    shuffled = list(reports)
    chance.shuffle(shuffled)

    assert to_text(add(shuffled)) == to_text(add(reports))


def test_the_census_agrees_with_a_plain_count_over_a_standard_package() -> None:
    folder = Path(asyncio.__file__).parent
    names = discovered(folder)
    report = add(measure(folder, name) for name in names)

    trees = [ast.parse((folder / name).read_bytes()) for name in names]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    totals = report["Totals"]
    assert "Files that could not be parsed" not in report
    assert totals["files"] == len(names)
    assert totals["classes"] == sum(isinstance(node, ast.ClassDef) for node in nodes)
    assert totals["functions"] == sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes
    )
    assert max(map(len, to_text(report).splitlines())) <= 100
