"""Totals over many files. Pure, and the same whatever order the files come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from effectflow.cli.census.metrics import FileMetrics

__all__ = [
    "Census",
    "ComplexFunction",
    "Duplicates",
    "Finding",
    "LargeFile",
    "ModuleUse",
    "Totals",
    "aggregate",
]


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
    """A function, and where it is."""

    file: str
    name: str
    line: int
    complexity: int


@dataclass(frozen=True, slots=True)
class ModuleUse:
    """A module, and how many files import it."""

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
    """A file with many lines."""

    file: str
    lines: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A file that could not be parsed, and why."""

    file: str
    problem: str


@dataclass(frozen=True, slots=True)
class Census:
    """The report, as data."""

    totals: Totals
    most_complex: tuple[ComplexFunction, ...]
    most_imported: tuple[ModuleUse, ...]
    largest: tuple[LargeFile, ...]
    duplicates: tuple[Duplicates, ...]
    findings: tuple[Finding, ...]


def aggregate(metrics: Iterable[FileMetrics]) -> Census:
    """The census of these files."""
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
