"""`kill -9` at random moments of the demonstration's life: nothing lost, nothing done twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ran

KILLS = 30

COUNTED = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    from effectflow.cli import commands, finding
    from effectflow.cli.app import main

    class Environment(finding.DemoEnvironment):
        '''Writes down each file once it has been measured, and takes its time over it.'''

        def measure(self, folder, name):
            metrics = super().measure(folder, name)
            with open("measured.log", "a") as log:
                log.write(name + "\\n")
                log.flush()
                os.fsync(log.fileno())
            return metrics

    finding.DemoEnvironment = Environment
    main()
""")
"""The command, with an environment of its own that counts: injected, as the library means it."""


def source_files(folder: Path, count: int) -> None:
    """Some Python files, all different, one of them broken."""
    folder.mkdir()
    for number in range(count):
        lines = [f"def f{number}_{i}(x):\n    return x if x else {i}\n" for i in range(number % 40)]
        (folder / f"m{number:04}.py").write_text(f"import os, sys\n# {number}\n" + "".join(lines))
    (folder / "broken.py").write_text("def (:\n")


def test_killed_thirty_times_it_reports_the_same_and_repeats_nothing_durable(
    folder: Path, effectflow: Callable[..., Ran]
) -> None:
    source_files(folder / "code", 400)
    assert effectflow("demo", "code", "--report", "whole", "--run-id", "whole").code == 0
    chance = random.Random(20251126)

    arguments = ["demo", "code", "--report", "killed", "--run-id", "killed", "--limit", "4"]
    kills, completed_before = 0, dict[str, int]()
    while kills < KILLS:
        process = subprocess.Popen(
            [sys.executable, "-c", COUNTED, *arguments], cwd=folder, stdout=subprocess.DEVNULL
        )
        time.sleep(0.35 + chance.random() * 0.25)
        process.kill()
        assert process.wait() in (-9, 0)
        kills += 1
        found = durable_steps(effectflow)
        assert completed_before.items() <= found.items(), "a durable step was lost or run again"
        completed_before = found
        if found:
            arguments = ["resume", "killed"]

    final = subprocess.run(
        [sys.executable, "-c", COUNTED, *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    assert f"{len(completed_before)} skipped" in final.stdout or "completed" in final.stdout
    assert (folder / "killed.json").read_bytes() == (folder / "whole.json").read_bytes()
    measured = Counter((folder / "measured.log").read_text().split())
    attempts = effectflow("show", "killed", "--json").json["metadata"]["attempts"]
    assert set(measured) == {path.name for path in (folder / "code").iterdir()}
    for name, times in measured.items():
        # A file may be measured again only if it was cut off: begun, and not durably completed.
        assert times <= attempts[f"par_traverse[{name}]/measure_file"]
    assert sum(measured.values()) <= 401 + KILLS * 4


def durable_steps(effectflow: Callable[..., Ran]) -> dict[str, int]:
    """Each completed step and the attempt that completed it; read by the commands, between lives."""
    shown = effectflow("show", "killed", "--json")
    if shown.code == 2:
        return {}
    assert shown.code == 0, shown.err
    assert effectflow("history", "killed").code == 0
    steps = json.loads(shown.out)["completed_steps"]
    return {step["step"]: step["attempt"] for step in steps}
