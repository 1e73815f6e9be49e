"""What `import effectflow` costs, against a bare interpreter and against its peers.

    pip install --group benchmarks      # the peers; without them their lines are left out
    python benchmarks/importing.py

Each import happens in a process of its own, the packages in turn, so that all meet the same machine;
the fastest of them all counts. Byte code is compiled before, as an installer does it.
"""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.util import find_spec

ROUNDS = 15
LIMIT = 0.1
PACKAGES = ("effectflow", "dbos", "langgraph.graph", "pydantic_graph")
MEASURE = "import time; begun = time.perf_counter(); import {}; print(time.perf_counter() - begun)"


def seconds(package: str) -> float:
    """How long a fresh process takes to import a package, in seconds."""
    command = [sys.executable, "-c", MEASURE.format(package)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    packages = [name for name in PACKAGES if find_spec(name.partition(".")[0]) is not None]
    for package in packages:
        command = [sys.executable, "-m", "compileall", "-q"]
        spec = find_spec(package.partition(".")[0])
        assert spec is not None
        subprocess.run([*command, *(spec.submodule_search_locations or [])], check=False)
    best = dict.fromkeys(packages, math.inf)
    for _ in range(ROUNDS):
        best = {package: min(time, seconds(package)) for package, time in best.items()}
    for package, time in best.items():
        print(f"import {package:16} {time * 1000:6.0f} ms {time / best['effectflow']:5.1f} times")
    print(f"limit  {LIMIT * 1000:23.0f} ms {'held' if best['effectflow'] < LIMIT else 'NOT held'}")


if __name__ == "__main__":
    main()
