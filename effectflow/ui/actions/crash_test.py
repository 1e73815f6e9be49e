"""Copy a run as a test that crashes its workflow everywhere."""

from __future__ import annotations

import re
import sys
from typing import Any, cast

from effectflow.checkpoint.values import KnownTypes
from effectflow.checkpoint.values.exceptions import importable_name
from effectflow.ui.actions.action import Action, Prepared, Target, intact, told, warned


async def _prepare_test(target: Target) -> Prepared:
    code, missing = crash_test(target, target.input)
    facts = [
        told(
            "What it does",
            "The test runs the workflow with the input of this run, in memory. It crashes it at each "
            "write, resumes it, and checks that it ends in the same way. Give it an environment "
            "whose steps act nowhere.",
        )
    ]
    if missing:
        facts.append(warned("To complete by hand", *missing))
    return Prepared(tuple(facts), code=code)


def crash_test(target: Target, value: Any) -> tuple[str, list[str]]:
    """Return a test of the workflow of a run as code, and what it lacks.

    Parameters:
        value: the input of the run.
    """
    workflow, input_type = target.workflow, target.workflow.blueprint.input_type
    missing: list[str] = []
    imports = [("effectflow", "Checkpoints"), ("effectflow.testing", "crash_everywhere")]

    def imported(what: str, wanted: object) -> str:
        found = _named(wanted, workflow.blueprint.module)
        if found is None:
            missing.append(f"No loaded module has the {what} as a variable: import it as `{what}`.")
            return what
        imports.append(found)
        return found[1]

    app, name = imported("app", target.site.app), imported("workflow", workflow)
    # The repr of a member of an enum is no code.
    shown = re.sub(r"<(\w+\.\w+): [^<>]*>", r"\1", repr(value))
    kinds = KnownTypes.of(cast("object", type(value)), input_type).classes.values()
    imports += [
        (kind.__module__, kind.__name__)
        for kind in kinds
        if re.search(rf"\b{kind.__name__}[.(]", shown)
    ]
    imports += [(module, name) for name, module in _PLAIN.items() if f"{name}(" in shown]
    try:
        if len(shown) > _LONGEST_INPUT:
            raise ValueError("nobody would copy it")
        compile(shown, "input", "eval")
    except (SyntaxError, ValueError):
        missing.append(
            "The input is long or has no repr that is code: write it where the test has `...`."
        )
        shown = "..."
    lines = "\n".join(f"from {module} import {one}" for module, one in sorted({*imports}))
    if "datetime." in shown:
        lines = f"import datetime\n{lines}"
    return _TEST.format(imports=lines, input=shown, workflow=name, app=app), missing


_LONGEST_INPUT = 20_000

_PLAIN = {
    "Decimal": "decimal",
    "Fraction": "fractions",
    "UUID": "uuid",
    "PosixPath": "pathlib",
    "WindowsPath": "pathlib",
    "PurePosixPath": "pathlib",
}
"""The modules of classes that inputs may have without declaring them."""

_TEST = """\
import pytest
{imports}


@pytest.mark.anyio
async def test_it_ends_the_same_wherever_it_crashes() -> None:
    given = {input}
    await crash_everywhere(
        {workflow}, given, lambda store: {app}.environment(Checkpoints(store))
    )
"""


def _named(value: object, module: str) -> tuple[str, str] | None:
    """Return the module and the name of a variable that has a value; None if no module has one."""
    loaded = [sys.modules[module]] if module in sys.modules else []
    for each in (*loaded, *list(sys.modules.values())):
        variables: dict[str, object] = getattr(each, "__dict__", {})
        for name, known in list(variables.items()):
            if known is value and not name.startswith("_"):
                return importable_name(each.__name__) or "__main__", name
    return None


CRASH_TEST = Action("crash-test", "Copy as a crash test", intact, _prepare_test)
