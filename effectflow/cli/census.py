"""The demonstration: a census of Python source files as a durable workflow.

Each file is one step, in a pool of processes. A resumed run measures only the files that are left.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Never, TypeAlias

import orjson

from effectflow import Checkpoints, Do, Effect, ask, attempt, par_traverse, step, workflow
from effectflow.effects import Executor, ExecutorError, from_fn
from effectflow.executors import ProcessExecutor

__all__ = ["CensusEnvironment", "CensusJob", "census", "environment"]


@dataclass(frozen=True)
class CensusJob:
    """The folder to measure, the path of the reports, and how many files to measure at once."""

    folder: str
    report: str
    limit: int


@dataclass(frozen=True)
class CensusEnvironment:
    """What the workflow needs: checkpoints, and where files are measured."""

    checkpoints: Checkpoints
    executor: Executor


@asynccontextmanager
async def environment(checkpoints: Checkpoints) -> AsyncGenerator[CensusEnvironment]:
    """Open the environment of the workflows in this module. The commands look for this name."""
    async with ProcessExecutor() as executor:
        yield CensusEnvironment(checkpoints, executor)


Report: TypeAlias = dict[str, dict[str, int]]
"""Numbers by what they count, and by topic. That of a folder adds up those of its files."""

BRANCHES = (ast.If, ast.IfExp, ast.BoolOp, ast.For, ast.While, ast.ExceptHandler, ast.match_case)


def measure(folder: Path, name: str) -> Report:
    """Return the report on the file `name` below a folder."""
    try:
        data = (folder / name).read_bytes()
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            nodes = [*ast.walk(ast.parse(data))]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        return {"Totals": {"files": 1}, "Files that could not be parsed": {f"{name}: {reason}": 1}}
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.add(node.module)
    return {
        "Totals": {
            "files": 1,
            "bytes": len(data),
            "lines": len(data.splitlines()),
            "functions": len(functions),
            "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        },
        "Functions with the most branches": {
            f"{name}:{function.lineno} {function.name}": branches
            for function in functions
            if (branches := sum(isinstance(node, BRANCHES) for node in ast.walk(function))) > 9
        },
        "Most imported modules": {module.partition(".")[0]: 1 for module in imports},
        "Longest files": {name: len(data.splitlines())},
    }


def add(reports: Iterable[Report]) -> Report:
    """Return the sums, with the largest 20 of each topic. Their order makes no difference."""
    sums: dict[str, Counter[str]] = {}
    for topic, counts in (each for report in reports for each in report.items()):
        sums.setdefault(topic, Counter()).update(counts)
    return {
        topic: dict(sorted(counts.items(), key=lambda count: (-count[1], count[0]))[:20])
        for topic, counts in sorted(sums.items(), reverse=True)
    }


def to_text(report: Report) -> str:
    """Return a report as text for people."""
    lines: list[str] = []
    for topic, counts in report.items():
        lines += [topic, *(f"{count:>12,}  {what}" for what, count in counts.items()), ""]
    return "\n".join(lines)


@step
def discover_files(folder: str) -> Effect[object, OSError, list[str]]:
    def discover(_: object) -> list[str]:
        paths = (path for path in Path(folder).rglob("*.py") if path.is_file())
        names = sorted(path.relative_to(folder).as_posix() for path in paths)
        # Without what tools install, and without names that are not UTF-8, in which runs are saved.
        installed = re.compile("(^|/)([.]|site-packages/|node_modules/)")
        names = [name for name in names if name.isprintable() and not installed.search(name)]
        if not names:
            raise FileNotFoundError(f"found no Python file below {folder}: choose another folder")
        return names

    return attempt(discover, OSError)


def measured(folder_and_name: tuple[str, str]) -> Effect[object, Never, Report]:
    return from_fn(lambda _: measure(Path(folder_and_name[0]), folder_and_name[1]))


@step
def measure_file(folder: str, name: str) -> Effect[CensusEnvironment, ExecutorError, Report]:
    return ask(CensusEnvironment).and_then(lambda env: env.executor.apply(measured, (folder, name)))


@step
def write_reports(job: CensusJob, report: Report) -> Effect[object, OSError, list[str]]:
    def write(_: object) -> list[str]:
        text, data = Path(f"{job.report}.txt"), Path(f"{job.report}.json")
        text.write_text(to_text(report), encoding="utf-8")
        data.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        return [str(text), str(data)]

    return attempt(write, OSError)


@workflow
def census(job: CensusJob) -> Do[CensusEnvironment, ExecutorError | OSError, list[str]]:
    """Find the source files, measure each, and write the reports. Return their paths."""
    names = yield from discover_files(job.folder)
    reports = yield from par_traverse(
        names, lambda name: measure_file(job.folder, name), limit=job.limit, key=str
    )
    return (yield from write_reports(job, add(reports)))
