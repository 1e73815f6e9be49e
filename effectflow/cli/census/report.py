"""A census as JSON and as text. Neither has a time or a path of the machine in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from effectflow.cli.census.aggregate import Census

__all__ = ["to_json", "to_text"]


def to_json(census: Census) -> bytes:
    """The census as JSON, byte for byte the same for the same census."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(census, option=options)


def to_text(census: Census, folder_name: str) -> str:
    """The census as a report to read."""
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
    """Rows of a number and what it counts, the numbers aligned at their right."""
    pairs = list(rows)
    width = max((len(number) for number, _ in pairs), default=0)
    return [f"  {number:>{width}}  {what}" for number, what in pairs]


def _group(size: int, files: Sequence[str]) -> list[str]:
    return [f"  {size:,} bytes each:", *(f"    {name}" for name in files)]
