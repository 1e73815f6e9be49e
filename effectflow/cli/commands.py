"""The `effectflow` command: its entry point, and the table of its commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import typer


class Row(NamedTuple):
    """A command: its module and function in `cli`, their first sentence, an example, its panel."""

    home: str
    summary: str
    example: str
    panel: str


# The summaries are those of the functions. Here, `--help` needs no command to be imported.
COMMANDS = {
    "demo": Row(
        "run:demo",
        "Take a census of Python source files, durably. Kill it at any moment, then resume it.",
        "demo ~/projects/shop --report shop",
        "Run",
    ),
    "run": Row(
        "run:run",
        "Run a workflow on an input. Given the id of a run with the same input, continue that run.",
        """run shop.orders:checkout --input '{"cart": 7}'""",
        "Run",
    ),
    "resume": Row(
        "run:resume",
        "Continue a run from where it stopped. Completed steps are skipped.",
        "resume --latest",
        "Run",
    ),
    "worker": Row(
        "run_worker:worker",
        "Drive the runs of an App: those that are submitted, due, or left by a process that died.",
        "worker shop.service:app --limit 20",
        "Run",
    ),
    "ui": Row(
        "pages:ui",
        "Serve pages in which people see and steer runs, until Ctrl-C.",
        "ui --app shop.service:app",
        "See",
    ),
    "cancel": Row(
        "send:cancel",
        "Request that runs end: their finalizers and compensations run, and they are cancelled.",
        "cancel order-7 --app shop.service:app",
        "Control",
    ),
    "pause": Row(
        "control:pause",
        "Let nothing continue runs until they are unpaused. Steps in progress end first.",
        "pause order-7 --app shop.service:app",
        "Control",
    ),
    "unpause": Row(
        "control:unpause",
        "Let workers continue paused runs, at the time when they are due.",
        "unpause order-7 --app shop.service:app",
        "Control",
    ),
    "retry": Row(
        "control:retry",
        "Let the next worker try runs again that have failed, are blocked, or were interrupted.",
        "retry --status failed --workflow checkout --since 2h --app shop.service:app",
        "Control",
    ),
    "rerun": Row(
        "control:rerun",
        "Make new runs with the same inputs as other ones, which stay as they are.",
        "rerun order-7 --app shop.service:app",
        "Control",
    ),
    "pauses": Row(
        "pauses:pauses",
        "Show which queues, workflows and schedules are paused; pause them, or let them go on.",
        "pauses --pause queue:reports --app shop.service:app",
        "Control",
    ),
    "send": Row(
        "send:send",
        "Send the value of a signal to a run, which receives it where it waits for the signal.",
        """send order-7 approval '{"by": "ann"}' --app shop.service:app""",
        "Run",
    ),
    "complete-step": Row(
        "settle:complete_step",
        "Record that a step of a run has completed with a value, without executing it.",
        """complete-step order-7 charge '"paid in cash"' --app shop.orders""",
        "Repair",
    ),
    "fail-step": Row(
        "settle:fail_step",
        "Record that a step of a run has failed with an error, without executing it again.",
        "fail-step order-7 charge 'no account' --app shop.orders",
        "Repair",
    ),
    "fork": Row(
        "fork:fork",
        "Make a new run from the beginning of another one, which stays as it is.",
        "fork order-7 --at charge --app shop.orders",
        "Repair",
    ),
    "delete": Row(
        "retention:delete",
        "Delete runs with their journals and messages. Runs that they have spawned continue.",
        "delete --status failed --before 90d --app shop.service:app",
        "Control",
    ),
    "prune": Row(
        "retention:prune",
        "Delete ended runs that are old, in small batches.",
        "prune --before 30d --keep 100 --dry-run --app shop.service:app",
        "Control",
    ),
    "dead-letters": Row(
        "dead_letters:dead_letters",
        "Show the items of map-reduce jobs that failed, and how each attempt ended; retry or drop them.",
        "dead-letters words --retry emma/50 --app books",
        "Repair",
    ),
    "list": Row(
        "list_runs:list_runs",
        "List the runs of a store, newest first.",
        "list --workflow census",
        "See",
    ),
    "top": Row(
        "top:top",
        "Show what the workers of a store do, again every second until Ctrl-C.",
        "top --app shop.service:app",
        "See",
    ),
    "show": Row(
        "show:show",
        "Show the state of a run, now or after an earlier entry.",
        "show census-1f0c7a2e9b3d",
        "See",
    ),
    "explain": Row(
        "explain:explain",
        "Tell why a run is where it is, and print the commands that would move it.",
        "explain census-1f0c7a2e9b3d",
        "See",
    ),
    "timeline": Row(
        "timeline:timeline",
        "Show when the steps, waits and attempts of a run happened, as bars.",
        "timeline census-1f0c7a2e9b3d --svg run.svg",
        "See",
    ),
    "graph": Row(
        "graph:graph",
        "Draw the shape of a workflow as a Mermaid flowchart, which many Markdown viewers show.",
        "graph shop.orders:checkout --run order-7 --svg order-7.svg",
        "See",
    ),
    "history": Row(
        "history:history",
        "Show the journal of a run, one entry per line.",
        "history census-1f0c7a2e9b3d",
        "See",
    ),
    "verify": Row(
        "verify:verify",
        "Check that the entries of a run, or of all runs, are undamaged.",
        "verify --store file:./runs",
        "Repair",
    ),
    "repair": Row(
        "verify:repair",
        "Truncate a damaged run after its last intact entry, so that it can be resumed.",
        "repair census-1f0c7a2e9b3d --aside ./damaged",
        "Repair",
    ),
    "plan": Row(
        "show_plan:plan",
        "Show what a resume of a run would do, without doing it. Exit with 4 if it would be rejected.",
        "plan census-1f0c7a2e9b3d",
        "Before you resume or deploy",
    ),
    "check": Row(
        "check:check",
        "Replay all unfinished runs by the code of an App, and list those that it would not continue.",
        "check shop.service:app --store postgresql://host/shop",
        "Before you resume or deploy",
    ),
    "export": Row(
        "transfer:export_runs",
        "Write runs as lines of JSON, which `import` reads into a store of any kind.",
        "export census-1f0c7a2e9b3d --output run.jsonl",
        "Move",
    ),
    "archive": Row(
        "archive:archive",
        "Write runs to a compressed file, which `list`, `show`, `history`, `verify` and `import` read.",
        "archive --status completed --before 90d --output 2026.jsonl.gz --delete",
        "Move",
    ),
    "import": Row(
        "transfer:import_runs",
        "Add exported runs to a store. Runs that the store already has stay as they are.",
        "import run.jsonl --store file:./runs",
        "Move",
    ),
}


def main() -> None:
    """Run the command line; end the process with an `ExitCode`."""
    try:
        make_app()()
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich", "cloudpickle", "pydantic"):
            raise
        print(
            f"The command line needs {missing.name}, which is not installed. "
            "Install it with: pip install 'effectflow[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)


def make_app() -> typer.Typer:
    """Return the commands by their names."""
    from effectflow.cli.group import make_group

    return make_group(COMMANDS)
