"""Measure Python source files, add the measures up, and write the report.

All of it is pure, except for listing and reading the files. The report depends neither on the order of
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
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import orjson

__all__ = [
    "Census",
    "ComplexFunction",
    "Duplicates",
    "FileMetrics",
    "Finding",
    "FunctionMetrics",
    "LargeFile",
    "ModuleUse",
    "NoSourceFiles",
    "Totals",
    "aggregate",
    "discover",
    "measure",
    "to_json",
    "to_text",
]

_KEPT_FUNCTIONS = 5
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "node_modules"})


class NoSourceFiles(ValueError):
    """A folder holds no Python file."""


@dataclass(frozen=True, slots=True)
class FunctionMetrics:
    """One function: its qualified name, first line and cyclomatic complexity."""

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
        comments: the number of lines that hold only a comment.
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
        """The number of lines that hold nothing."""
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
        found += [
            _shown((Path(root) / name).relative_to(folder).as_posix())
            for name in files
            if name.endswith(".py")
        ]
    if not found:
        raise NoSourceFiles(f"found no Python file below {folder}: choose another folder")
    return sorted(found)


def measure(folder: Path, name: str) -> FileMetrics:
    """Return the measures of the file `name` below `folder`, or its `problem`."""
    path = folder / _hidden(name)
    if path.exists() and not path.is_file():
        return FileMetrics(name, problem="not a regular file")
    try:
        data = path.read_bytes()
    except OSError as error:
        return FileMetrics(name, problem=f"cannot be read: {error.strerror}")
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        text = _decode(data)
        tree = _parse(text)
        lines, code, comments = _count_lines(text)
    except _UNPARSABLE as error:
        return FileMetrics(name, sha256, len(data), problem=_problem(error))
    functions = sorted(_functions(tree), key=lambda found: (-found.complexity, found.line))
    nodes = list(ast.walk(tree))
    return FileMetrics(
        name,
        sha256,
        len(data),
        lines,
        code,
        comments,
        functions=len(functions),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        complexity=sum(map(_decisions, nodes)) + len(functions) + 1,
        most_complex=tuple(functions[:_KEPT_FUNCTIONS]),
        imports=tuple(sorted({module for node in nodes for module in _imported(node)})),
    )


def _shown(name: str) -> str:
    r"""Return a file name as text, with bytes that are not UTF-8 written as `\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _hidden(name: str) -> str:
    """Return the file name that `_shown` wrote as text."""
    encoded = re.sub(
        rb"\\x([89a-f][0-9a-f])",
        lambda escape: bytes.fromhex(escape[1].decode()),
        name.encode(),
    )
    return os.fsdecode(encoded)


_UNPARSABLE = (
    SyntaxError,
    ValueError,
    LookupError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)


def _decode(data: bytes) -> str:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return io.TextIOWrapper(io.BytesIO(data), encoding, newline=None).read()


_PARSER = Lock()


def _parse(text: str) -> ast.Module:
    # One thread at a time: filters of warnings belong to the process, and CPython 3.11 raises
    # SystemError ("AST constructor recursion depth mismatch") if a parser switches threads.
    with _PARSER, warnings.catch_warnings():
        # The parser warns of odd escapes, which are the business of the file's author.
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _count_lines(text: str) -> tuple[int, int, int]:
    """Return the number of all lines, of lines with code, and of lines with only a comment."""
    lines = text.count("\n") + (not text.endswith("\n") and text != "")
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return lines, len(code), len(comments - code)


_LAYOUT = frozenset(
    {
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.ENCODING,
    }
)

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.Module) -> Iterator[FunctionMetrics]:
    """Yield every function. Its complexity excludes the functions nested in it."""
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    while todo:
        node, prefix = todo.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                todo.append((child, prefix))
                continue
            name = f"{prefix}{child.name}"
            todo.append((child, f"{name}."))
            if not isinstance(child, ast.ClassDef):
                yield FunctionMetrics(name, child.lineno, 1 + _own_decisions(child))


def _own_decisions(function: _Function) -> int:
    count = 0
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        count += _decisions(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))
    return count


def _decisions(node: ast.AST) -> int:
    """Return how many paths a node adds to its function (McCabe, 1976)."""
    match node:
        case ast.If() | ast.For() | ast.AsyncFor() | ast.While() | ast.IfExp():
            return 1
        case ast.ExceptHandler() | ast.Assert():
            return 1
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.match_case():
            return 1
        case _:
            return 0


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["."] if node.level else [(node.module or ".").partition(".")[0]]
    return []


def _problem(error: BaseException) -> str:
    """Return a one-line description of the error that is the same on every machine."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno}: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not {error.encoding}: {error.reason}"
    if isinstance(error, RecursionError | MemoryError):
        return "nested too deeply to parse"
    return str(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all files."""

    files: int
    bytes: int
    lines: int
    code: int
    comments: int
    blank: int
    functions: int
    classes: int
    complexity: int


@dataclass(frozen=True, slots=True)
class ComplexFunction:
    """A function and its place."""

    file: str
    name: str
    line: int
    complexity: int


@dataclass(frozen=True, slots=True)
class ModuleUse:
    """A module and the number of files that import it."""

    module: str
    files: int


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Files with the same content."""

    sha256: str
    bytes: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file and the number of its lines."""

    file: str
    lines: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A file that could not be parsed, and the problem."""

    file: str
    problem: str


@dataclass(frozen=True, slots=True)
class Census:
    """The report as data."""

    totals: Totals
    most_complex: tuple[ComplexFunction, ...]
    most_imported: tuple[ModuleUse, ...]
    largest: tuple[LargeFile, ...]
    duplicates: tuple[Duplicates, ...]
    findings: tuple[Finding, ...]


def aggregate(metrics: Iterable[FileMetrics]) -> Census:
    """Return the census of these files."""
    files = sorted(metrics, key=lambda file: file.name)
    functions = [
        ComplexFunction(file.name, found.name, found.line, found.complexity)
        for file in files
        for found in file.most_complex
    ]
    functions.sort(key=lambda found: (-found.complexity, found.file, found.line, found.name))
    uses = Counter(module for file in files for module in file.imports if module != ".")
    modules = [ModuleUse(module, count) for module, count in uses.items()]
    modules.sort(key=lambda use: (-use.files, use.module))
    largest = sorted(files, key=lambda file: (-file.lines, file.name))
    return Census(
        totals=_totals(files),
        most_complex=tuple(functions[:20]),
        most_imported=tuple(modules[:20]),
        largest=tuple(LargeFile(file.name, file.lines) for file in largest[:10]),
        duplicates=_duplicates(files),
        findings=tuple(Finding(file.name, file.problem) for file in files if file.problem),
    )


def _totals(files: Sequence[FileMetrics]) -> Totals:
    return Totals(
        files=len(files),
        bytes=sum(file.size for file in files),
        lines=sum(file.lines for file in files),
        code=sum(file.code for file in files),
        comments=sum(file.comments for file in files),
        blank=sum(file.blank for file in files),
        functions=sum(file.functions for file in files),
        classes=sum(file.classes for file in files),
        complexity=sum(file.complexity for file in files),
    )


def _duplicates(files: Sequence[FileMetrics]) -> tuple[Duplicates, ...]:
    groups: dict[str, list[FileMetrics]] = {}
    for file in files:
        if file.size:
            groups.setdefault(file.sha256, []).append(file)
    found = [
        Duplicates(sha256, group[0].size, tuple(file.name for file in group))
        for sha256, group in groups.items()
        if len(group) > 1
    ]
    return tuple(sorted(found, key=lambda group: (-group.bytes, group.files)))


def to_json(census: Census) -> bytes:
    """Return the census as JSON, with the same bytes for the same census."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(census, option=options)


def to_text(census: Census, folder_name: str) -> str:
    """Return the census as a report for people."""
    totals = census.totals
    sections = [
        _section(
            f"Python files below {folder_name}",
            _columns(
                (f"{count:,}", what)
                for what, count in (
                    ("files", totals.files),
                    ("bytes", totals.bytes),
                    ("lines", totals.lines),
                    ("lines of code", totals.code),
                    ("lines of comment", totals.comments),
                    ("blank lines", totals.blank),
                    ("functions", totals.functions),
                    ("classes", totals.classes),
                )
            ),
        ),
        _section(
            "Most complex functions",
            _columns(
                (str(found.complexity), f"{found.name}  {found.file}:{found.line}")
                for found in census.most_complex
            ),
        ),
        _section(
            "Most imported modules (files)",
            _columns((str(use.files), use.module) for use in census.most_imported),
        ),
        _section(
            "Largest files (lines)",
            _columns((f"{large.lines:,}", large.file) for large in census.largest),
        ),
        _section(
            "Files with the same content",
            [line for group in census.duplicates for line in _group(group.bytes, group.files)],
        ),
        _section(
            "Files that could not be parsed",
            [f"  {finding.file}: {finding.problem}" for finding in census.findings],
        ),
    ]
    return "\n\n".join(sections) + "\n"


def _section(heading: str, lines: Sequence[str]) -> str:
    return "\n".join([heading, "-" * len(heading), *(lines or ["  none"])])


def _columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each pair of a number and a text, with the numbers aligned at the right."""
    pairs = list(rows)
    width = max((len(number) for number, _ in pairs), default=0)
    return [f"  {number:>{width}}  {what}" for number, what in pairs]


def _group(size: int, files: Sequence[str]) -> list[str]:
    return [f"  {size:,} bytes each:", *(f"    {name}" for name in files)]
