"""The census: what it counts, and that its report is the same in any order and on any machine."""

from __future__ import annotations

import ast
import asyncio
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from effectflow.cli.census_analysis import (
    FileMetrics,
    NoSourceFiles,
    aggregate,
    discover,
    measure,
    to_json,
    to_text,
)


def measured(folder: Path, source: str | bytes) -> FileMetrics:
    data = source if isinstance(source, bytes) else source.encode()
    (folder / "m.py").write_bytes(data)
    return measure(folder, "m.py")


@pytest.mark.parametrize(
    ("body", "complexity"),
    [
        ("pass", 1),
        ("if a: pass", 2),
        ("if a: pass\n    elif b: pass\n    else: pass", 3),
        ("for x in a: pass", 2),
        ("while a: pass", 2),
        ("try: pass\n    except E: pass\n    except F: pass", 3),
        ("return a and b and c", 3),
        ("return a or b", 2),
        ("return a if b else c", 2),
        ("return [x for x in a if x if a]", 4),
        ("assert a", 2),
        ("match a:\n        case 1: pass\n        case _: pass", 3),
        ("with a: pass", 1),
        ("def inner():\n        if a: pass", 1),
    ],
)
def test_cyclomatic_complexity(tmp_path: Path, body: str, complexity: int) -> None:
    found = measured(tmp_path, f"def f(a, b, c):\n    {body}\n")

    assert {one.name: one.complexity for one in found.most_complex}["f"] == complexity


@pytest.mark.parametrize(
    ("source", "code", "comments", "blank"),
    [
        ("", 0, 0, 0),
        ("x = 1", 1, 0, 0),
        ("# only\n\nx = 1  # beside\n", 1, 1, 1),
        ('x = "# no comment"\n', 1, 0, 0),
        ('"""a\n\n# text\n"""\n', 4, 0, 0),
        ("x = (\n    # inside\n\n    1)\n", 2, 1, 1),
        ("x = 1\r\n# dos\r\n\r\n", 1, 1, 1),
        ("\ufeffx = 1\n", 1, 0, 0),
    ],
)
def test_each_line_is_code_comment_or_blank(
    tmp_path: Path, source: str, code: int, comments: int, blank: int
) -> None:
    found = measured(tmp_path, source)

    assert found.problem is None
    assert (found.code, found.comments, found.blank) == (code, comments, blank)


def test_names_and_imports_are_read_in_the_encoding_of_the_file(tmp_path: Path) -> None:
    source = (
        "# -*- coding: latin-1 -*-\nimport os.path, sys\nfrom json import dumps\nfrom . import x\n"
        "class A:\n    def caf\xe9(self):\n        async def inner(): pass\n"
    )
    found = measured(tmp_path, source.encode("latin-1"))

    assert found.imports == (".", "json", "os", "sys")
    assert {one.name for one in found.most_complex} == {"A.caf\xe9", "A.caf\xe9.inner"}
    assert (found.functions, found.classes) == (2, 1)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (b"def f(:\n", "line 1"),
        (b"x = (\n", "never closed"),
        (b"\xff\xfe\n", "encoding"),
        (b"# coding: nonsense\n", "nonsense"),
        (b"x = 1\x00\n", "null"),
        (b"x = " + b"(" * 500 + b")" * 500, "parenthes"),
        (b"x = " + b"-" * 200_000 + b"1", "nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_a_finding(
    tmp_path: Path, source: bytes, problem: str
) -> None:
    found = measured(tmp_path, source)

    assert found.problem is not None
    assert problem in found.problem
    assert str(tmp_path) not in found.problem
    assert found.sha256


def test_a_missing_file_is_a_finding(tmp_path: Path) -> None:
    assert "cannot be read" in (measure(tmp_path, "gone.py").problem or "")


def test_a_file_name_that_is_not_utf_8_is_escaped_and_measured(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff\xfe.py")).write_text("x = 1\n")

    assert discover(tmp_path) == ["\\xff\\xfe.py"]
    found = measure(tmp_path, "\\xff\\xfe.py")
    assert (found.code, found.problem) == (1, None)


def test_a_pipe_is_a_finding(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")

    assert measure(tmp_path, "pipe.py").problem == "not a regular file"


def test_discover_skips_caches_hidden_folders_and_links(tmp_path: Path) -> None:
    for name in ("b.py", "a/c.py", "__pycache__/x.py", ".git/y.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)

    assert discover(tmp_path) == ["a/c.py", "b.py"]
    with pytest.raises(NoSourceFiles, match="found no Python file"):
        discover(tmp_path / ".git" / "nothing")


FILES = st.lists(
    st.builds(
        FileMetrics,
        name=st.text("abc/", min_size=1),
        sha256=st.sampled_from(["1", "2", "3"]),
        size=st.integers(0, 9),
        lines=st.integers(0, 99),
        imports=st.lists(st.sampled_from(["os", "sys", "."])).map(tuple),
        problem=st.none() | st.just("broken"),
    ),
    unique_by=lambda file: file.name,
)


@given(FILES, st.randoms())
def test_the_report_does_not_depend_on_the_order_of_the_files(
    files: list[FileMetrics], chance: random.Random
) -> None:
    shuffled = list(files)
    chance.shuffle(shuffled)

    assert to_json(aggregate(shuffled)) == to_json(aggregate(files))
    assert to_text(aggregate(shuffled), "x") == to_text(aggregate(files), "x")


def test_the_census_agrees_with_a_plain_count_over_a_standard_package() -> None:
    folder = Path(asyncio.__file__).parent
    names = discover(folder)
    report = aggregate(measure(folder, name) for name in names)

    trees = [ast.parse((folder / name).read_bytes()) for name in names]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    assert report["findings"] == []
    assert report["totals"]["files"] == len(names)
    assert report["totals"]["classes"] == sum(isinstance(node, ast.ClassDef) for node in nodes)
    assert report["totals"]["functions"] == sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes
    )
    text = to_text(report, "asyncio")
    assert max(map(len, text.splitlines())) <= 100
