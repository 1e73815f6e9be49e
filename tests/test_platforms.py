"""The package can be imported, and runs a workflow, where Python lacks what only Unix has."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = textwrap.dedent("""
    import os
    import signal

    del os.fork, os.register_at_fork, os.sched_getaffinity, signal.SIGUSR1, signal.SIGKILL

    import anyio
    import importlib
    import pkgutil
    import effectflow
    from effectflow import *
    from effectflow.service import run_until_signal

    for module in pkgutil.walk_packages(effectflow.__path__, "effectflow."):
        # The one runs the commands, and the other needs a package with modules for Unix.
        if module.name not in ("effectflow.__main__", "effectflow.executors.dask"):
            importlib.import_module(module.name)

    class App:
        checkpoints = Checkpoints(SqliteStore("runs.db"))

    @step
    @effect
    def double(app: App, number: int) -> int:
        return 2 * number

    @workflow
    def doubled(number: int) -> Do[App, str, int]:
        return (yield from double(number))

    async def main():
        print(await run_until_signal(lambda: doubled.start(4, run_id="r").run(App())))

    anyio.run(main)
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a platform with forks, to remove them")
def test_a_platform_without_forks_imports_every_module_and_runs_a_workflow(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("<Success: 8>\n", "")
