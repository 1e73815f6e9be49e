"""Where work runs: in this event loop, in a pool of processes, on a Dask cluster.

`ProcessExecutor` is in `effectflow.executors.process`, `DaskExecutor` in `effectflow.executors.dask`:
who does not use them needs no package for them.
"""

from effectflow.executors.local import LocalExecutor

__all__ = ["LocalExecutor"]
