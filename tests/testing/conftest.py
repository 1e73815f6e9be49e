"""Imports what the sessions within these tests use.

pytester takes modules that such a session is the first to import out of `sys.modules` again, while
other modules still refer to them.
"""

import effectflow.checkpoint.run
import effectflow.executors
import effectflow.workflows.mapreduce._job  # noqa: F401
