"""Imports the whole package before the sessions within these tests.

pytester takes modules that such a session is the first to import out of `sys.modules` again, while
other modules still refer to them.
"""

from importlib import import_module
from pkgutil import walk_packages

import effectflow

for module in walk_packages(effectflow.__path__, "effectflow."):
    if not module.name.endswith("__main__"):
        import_module(module.name)
