"""Measure Python source files, add up the measures, and write the report.

Everything is pure, except for listing and reading the files. The report depends neither on the order of
the files nor on the machine.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import decode_source
from pathlib import Path
from typing import Any, TypeAlias

import orjson

_KEPT_FUNCTIONS = 5
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "node_modules"})


class NoSourceFiles(ValueError):
    """A folder has no Python file."""


@dataclass(frozen=True, slots=True)
class FunctionMetrics:
    """One function: its file, qualified name, first line and cyclomatic complexity."""

    file: str
    name: str
    line: int
    complexity: int


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """The measures of one file.

    Attributes:
        name: the path below the folder, with `/`.
        sha256: the digest of the file's bytes, in hex.
        size: in bytes.
        lines: the number of lines; each is code, a comment, or blank.
        code: the number of lines with code. The lines of strings and docstrings are code.
        comments: the number of lines with only a comment.
        functions: the number of functions, including methods and nested functions.
        classes: the number of classes.
        complexity: the complexity of all functions and of the code outside them.
        most_complex: the five most complex functions.
        imports: the top-level modules that the file imports, sorted; "." is its own package.
        problem: why the file could not be parsed, or None. Such a file has no counts.
    """

    name: str
    sha256: str = ""
    size: int = 0
    lines: int = 0
    code: int = 0
    comments: int = 0
    functions: int = 0
    classes: int = 0
    complexity: int = 0
    most_complex: tuple[FunctionMetrics, ...] = ()
    imports: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def blank(self) -> int:
        """The number of blank lines."""
        return self.lines - self.code - self.comments


def discover(folder: Path) -> list[str]:
    """Return the sorted paths, with `/`, of the Python files below a folder.

    Skip caches, hidden folders, installed packages and symbolic links to folders. Raise NoSourceFiles
    if no file is found.
    """
    found: list[str] = []
    for root, folders, files in os.walk(folder):
        folders[:] = [
            name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(".")
        ]
        for name in files:
            if name.endswith(".py"):
                path = os.fsencode((Path(root) / name).relative_to(folder).as_posix())
                # Bytes that are not UTF-8 are shown as `\xff`; `_path_of` reads them back.
                found.append(path.decode("utf-8", "backslashreplace"))
    if not found:
        raise NoSourceFiles(f"found no Python file below {folder}: choose another folder")
    return sorted(found)


def _path_of(folder: Path, name: str) -> Path:
    """Return the path of a file that `discover` named."""
    encoded = re.sub(
        rb"\\x([89a-f][0-9a-f])", lambda byte: bytes.fromhex(byte[1].decode()), name.encode()
    )
    return folder / os.fsdecode(encoded)


def measure(folder: Path, name: str) -> FileMetrics:
    """Return the measures of the file `name` below `folder`, or its `problem`."""
    path = _path_of(folder, name)
    if path.exists() and not path.is_file():
        return FileMetrics(name, problem="not a regular file")
    try:
        data = path.read_bytes()
    except OSError as error:
        return FileMetrics(name, problem=f"cannot be read: {error.strerror}")
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        text = decode_source(data)
        tree = _parse(text)
        lines, code, comments = _count_lines(text)
    except _UNPARSABLE as error:
        return FileMetrics(name, sha256, len(data), problem=_problem(error))
    functions: list[FunctionMetrics] = []
    imports: set[str] = set()
    classes = complexity = 0
    for scope, qualified_name, nodes in _scopes(tree):
        decisions = sum(map(_decisions, nodes))
        complexity += decisions
        imports.update(module for node in nodes for module in _imported(node))
        if isinstance(scope, ast.ClassDef):
            classes += 1
        elif not isinstance(scope, ast.Module):
            functions.append(FunctionMetrics(name, qualified_name, scope.lineno, decisions + 1))
    functions.sort(key=lambda found: (-found.complexity, found.line))
    return FileMetrics(
        name,
        sha256,
        len(data),
        lines,
        code,
        comments,
        functions=len(functions),
        classes=classes,
        complexity=complexity + len(functions) + 1,
        most_complex=tuple(functions[:_KEPT_FUNCTIONS]),
        imports=tuple(sorted(imports)),
    )


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        # The parser warns about invalid escapes, which concern only the author of the file.
        warnings.simplefilter("ignore")
        return ast.parse(text)


_LAYOUT = frozenset(
    {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


def _count_lines(text: str) -> tuple[int, int, int]:
    """Return three numbers: of all lines, of lines with code, and of lines with only a comment."""
    lines = text.count("\n") + (not text.endswith("\n") and text != "")
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return lines, len(code), len(comments - code)


_UNPARSABLE = (
    SyntaxError,
    ValueError,
    LookupError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)


def _problem(error: BaseException) -> str:
    """Return a one-line description of the error that is the same on every machine."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno}: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not {error.encoding}: {error.reason}"
    if isinstance(error, RecursionError | MemoryError):
        return "nested too deeply to parse"
    return str(error) or type(error).__name__


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _scopes(tree: ast.Module) -> Iterator[tuple[ast.Module | _Definition, str, list[ast.AST]]]:
    """Yield the module and every definition: the node, its qualified name, and the nodes inside.

    The nodes do not include those of inner definitions.
    """
    todo: list[tuple[ast.Module | _Definition, str]] = [(tree, "")]
    while todo:
        scope, prefix = todo.pop()
        nodes = list(ast.iter_child_nodes(scope))
        # The list grows while the loop runs.
        for node in nodes:
            if isinstance(node, _Definition):
                todo.append((node, f"{prefix}{node.name}."))
            else:
                nodes.extend(ast.iter_child_nodes(node))
        yield scope, prefix[:-1], nodes


def _decisions(node: ast.AST) -> int:
    """Return how many paths a node adds to its function (McCabe, 1976)."""
    match node:
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case _:
            return int(isinstance(node, _BRANCHES))


_BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.match_case,
)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["."] if node.level else [(node.module or ".").partition(".")[0]]
    return []


Report: TypeAlias = dict[str, Any]
"""The report as plain data. Its `totals` are sums over all files, by name."""


def aggregate(metrics: Iterable[FileMetrics]) -> Report:
    """Return the report on these files."""
    files = sorted(metrics, key=lambda file: file.name)
    counted = ("lines", "code", "comments", "blank", "functions", "classes", "complexity")
    totals = {name: sum(getattr(file, name) for file in files) for name in counted}
    functions = [function for file in files for function in file.most_complex]
    functions.sort(key=lambda found: (-found.complexity, found.file, found.line, found.name))
    uses = Counter(module for file in files for module in file.imports if module != ".")
    modules = sorted(uses.items(), key=lambda use: (-use[1], use[0]))
    largest = sorted(files, key=lambda file: (-file.lines, file.name))
    return {
        "totals": {"files": len(files), "bytes": sum(file.size for file in files), **totals},
        "most_complex": [asdict(function) for function in functions[:20]],
        "most_imported": [{"module": module, "files": count} for module, count in modules[:20]],
        "largest": [{"file": file.name, "lines": file.lines} for file in largest[:10]],
        "duplicates": _duplicates(files),
        "findings": [
            {"file": file.name, "problem": file.problem} for file in files if file.problem
        ],
    }


def _duplicates(files: Sequence[FileMetrics]) -> list[dict[str, Any]]:
    """Return the files that have the same content as others, by content, the largest first."""
    groups: dict[tuple[int, str], list[str]] = {}
    for file in files:
        groups.setdefault((-file.size, file.sha256), []).append(file.name)
    found = [(*content, names) for content, names in groups.items() if len(names) > 1]
    return [
        {"sha256": sha256, "bytes": -size, "files": names}
        for size, sha256, names in sorted(found, key=lambda group: (group[0], group[2]))
        if size
    ]


def to_json(report: Report) -> bytes:
    """Return the report as JSON. The same report gives the same bytes."""
    return orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


_LABELS = {
    "files": "files",
    "bytes": "bytes",
    "lines": "lines",
    "code": "lines of code",
    "comments": "lines of comment",
    "blank": "blank lines",
    "functions": "functions",
    "classes": "classes",
}
"""The totals that the text shows."""


def to_text(report: Report, folder_name: str) -> str:
    """Return the report as text for people."""
    totals = [(report["totals"][name], label) for name, label in _LABELS.items()]
    functions = [
        (one["complexity"], "{name}  {file}:{line}".format(**one)) for one in report["most_complex"]
    ]
    modules = [(one["files"], one["module"]) for one in report["most_imported"]]
    largest = [(one["lines"], one["file"]) for one in report["largest"]]
    sections = {
        f"Python files below {folder_name}": _columns(totals),
        "Most complex functions": _columns(functions),
        "Most imported modules (files)": _columns(modules),
        "Largest files (lines)": _columns(largest),
        "Files with the same content": [
            line
            for one in report["duplicates"]
            for line in (
                f"  {one['bytes']:,} bytes each:",
                *(f"    {name}" for name in one["files"]),
            )
        ],
        "Files that could not be parsed": [
            f"  {one['file']}: {one['problem']}" for one in report["findings"]
        ],
    }
    blocks = (
        "\n".join([heading, "-" * len(heading), *(lines or ["  none"])])
        for heading, lines in sections.items()
    )
    return "\n\n".join(blocks) + "\n"


def _columns(rows: Sequence[tuple[int, str]]) -> list[str]:
    """Return a line for each pair of a number and a text, with right-aligned numbers."""
    width = max((len(f"{number:,}") for number, _ in rows), default=0)
    return [f"  {number:>{width},}  {what}" for number, what in rows]
