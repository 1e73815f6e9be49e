"""Imports point one way, and importing effectflow brings in no optional package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import effectflow
import effectflow.checkpoint
import effectflow.effects
import effectflow.observe
import effectflow.runs
import effectflow.service
import effectflow.testing

ROOT = Path(__file__).parent.parent

OPTIONAL_PACKAGES = {
    "cloudpickle",
    "dask",
    "distributed",
    "opentelemetry",
    "psycopg",
    "redis",
    "rich",
    "trio",
    "typer",
}


def lint_imports(project: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of pyproject.toml on the effectflow package that lies beside it."""
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache", "--no-logo"],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        check=False,
    )


PLANTED = {
    "effects": ("effectflow.checkpoint", "- effectflow.effects -> effectflow.checkpoint"),
    "effects.scope": (
        "effectflow.effects.nodes",
        "- effectflow.effects.scope -> effectflow.effects.nodes",
    ),
    "checkpoint.journal_writer": (
        "effectflow.checkpoint.run",
        "- effectflow.checkpoint.journal_writer -> effectflow.checkpoint.run",
    ),
    "stores": ("effectflow.runs", "- effectflow.stores -> effectflow.runs"),
    "unlisted": ("effectflow.effects", "- effectflow.unlisted"),
    "executors": ("effectflow.checkpoint", "- effectflow.executors -> effectflow.checkpoint"),
    "runs": ("rich.progress", "- effectflow.runs -> rich"),
    "builders": ("rich.progress", "- effectflow.builders -> rich"),
    "runs.step_loop": (
        "effectflow.runs.start",
        "- effectflow.runs.step_loop -> effectflow.runs.start",
    ),
}
"""The imports to plant in packages and modules, and what is reported of each."""


def test_imports_against_the_layers_are_reported(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "effectflow", tmp_path / "effectflow")
    for module, (planted, _) in PLANTED.items():
        planted_in = tmp_path.joinpath("effectflow", *module.split("."))
        file = planted_in.with_suffix(".py")
        if not file.exists():
            planted_in.mkdir(exist_ok=True)
            file = planted_in / "__init__.py"
        with file.open("a") as source:
            source.write(f"\nimport {planted}\n")

    check = lint_imports(tmp_path)

    assert check.returncode == 1, check.stdout + check.stderr
    told = re.sub(" +", " ", check.stdout)
    for _, report in PLANTED.values():
        assert report in told, check.stdout


PACKAGES = [
    effectflow,
    effectflow.checkpoint,
    effectflow.effects,
    effectflow.observe,
    effectflow.service,
    effectflow.testing,
]

NAMES = ", ".join(package.__name__ for package in PACKAGES)


def in_new_process(code: str) -> list[str]:
    """Return the words that a program prints in a process that has imported nothing."""
    program = [sys.executable, "-c", code]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()


def test_importing_effectflow_imports_no_optional_package_and_little_of_itself() -> None:
    imported = in_new_process("import effectflow, sys; print(*sys.modules)")

    assert "effectflow" in imported
    assert OPTIONAL_PACKAGES.isdisjoint(name.partition(".")[0] for name in imported)
    for late in ("cli", "checkpoint", "runs", "stores", "effects.parallel", "effects.validation"):
        assert f"effectflow.{late}" not in imported


def test_shapes_that_a_program_does_not_use_are_not_imported() -> None:
    imported = in_new_process(
        "from effectflow import workflow, step; import sys; print(*sys.modules)"
    )

    for shape in ("graph", "machine", "mapreduce", "iterative"):
        assert f"effectflow.builders.{shape}" not in imported
    assert "effectflow.checkpoint.values.codec" not in imported


def test_dir_of_a_package_has_every_public_name_before_it_is_used() -> None:
    shown = in_new_process(
        f"import {NAMES}\n"
        f"for package in ({NAMES}):\n"
        "    print(*(f'{package.__name__}.{name}' for name in dir(package)))"
    )

    for package in PACKAGES:
        assert {f"{package.__name__}.{name}" for name in package.__all__} <= set(shown)


def test_a_public_name_is_never_shadowed_by_a_module() -> None:
    modules = in_new_process(
        f"import {NAMES}\n"
        f"for package in ({NAMES}):\n"
        "    exec(f'from {package.__name__} import *')\n"
        f"for package in ({NAMES}):\n"
        "    for name in package.__all__:\n"
        "        if type(getattr(package, name)) is type(effectflow):\n"
        "            print(f'{package.__name__}.{name}')"
    )

    # A module that is public itself.
    assert modules == ["effectflow.testing.store_conformance"]


def test_an_effect_can_be_made_a_step_by_a_program_that_imports_only_effects() -> None:
    program = (
        "from effectflow import pure; print(pure(7).checkpointed('pay').run_sync_or_raise(None))"
    )

    assert in_new_process(program) == ["7"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_can_be_imported_lazily(package: ModuleType) -> None:
    assert all(hasattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'StateGrahp'"):
        package.StateGrahp  # noqa: B018
