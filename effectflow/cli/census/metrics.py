"""Measure one Python source file. Pure, but for reading the file."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FileMetrics", "FunctionMetrics", "NoSourceFiles", "discover", "measure"]

_KEPT_FUNCTIONS = 5
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "node_modules"})


class NoSourceFiles(ValueError):
    """There is no Python file below a folder."""


@dataclass(frozen=True, slots=True)
class FunctionMetrics:
    """One function: its qualified name, where it begins, and its cyclomatic complexity."""

    name: str
    line: int
    complexity: int


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """What one file is made of.

    Attributes:
        name: its path below the folder, with `/`.
        sha256: the digest of its bytes, in hex.
        size: in bytes.
        lines: how many; each is a line of code, of comment, or blank.
        code: lines with any code on them; those within a string, a docstring too, are code.
        comments: lines with nothing but a comment.
        functions: how many, methods and nested ones included.
        classes: how many.
        complexity: the sum over its functions, and of the code outside them.
        most_complex: the five most complex functions.
        imports: the top-level modules that it imports, sorted; "." for its own package.
        problem: why it could not be parsed, or None. What cannot be parsed has no other counts.
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
        """Lines with nothing on them."""
        return self.lines - self.code - self.comments


def discover(folder: Path) -> list[str]:
    """The Python files below a folder, as sorted paths below it, with `/`.

    Caches, hidden folders, installed packages and linked folders are passed over.

    Raises NoSourceFiles if there is none.
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
        raise NoSourceFiles(f"there is no Python file below {folder}: give another folder")
    return sorted(found)


def measure(folder: Path, name: str) -> FileMetrics:
    """Measure the file `name` below `folder`. A file that cannot be parsed has a `problem`."""
    path = folder / _hidden(name)
    if path.exists() and not path.is_file():
        return FileMetrics(name, problem="it is no regular file")
    try:
        data = path.read_bytes()
    except OSError as error:
        return FileMetrics(name, problem=f"it cannot be read: {error.strerror}")
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
    """A file name as text: bytes that are no UTF-8 are written as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _hidden(name: str) -> str:
    """The file name that `_shown` wrote as text."""
    encoded = re.sub(rb"\\x([89a-f][0-9a-f])", _byte, name.encode())
    return os.fsdecode(encoded)


def _byte(escape: re.Match[bytes]) -> bytes:
    return bytes.fromhex(escape[1].decode())


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


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        # A file's odd escapes are its author's business. (Another thread may end this filter early:
        # then a warning is shown, no more.)
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _count_lines(text: str) -> tuple[int, int, int]:
    """How many lines there are, with code on them, and with nothing but a comment."""
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
    """Every function, with a complexity of its own: that of a nested one is not counted twice."""
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
    """How many ways a node adds to the paths through its function (McCabe, 1976)."""
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
    """One line that says what is wrong, the same on every machine."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno}: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is no {error.encoding}: {error.reason}"
    if isinstance(error, RecursionError | MemoryError):
        return "it is nested too deeply to be parsed"
    return str(error) or type(error).__name__
