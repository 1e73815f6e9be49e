"""The entry point of the `effectflow` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; end the process with one of the exit codes of `exits`."""
    try:
        from effectflow.cli.commands import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        sys.exit(
            f"The command line needs {missing.name}, which is not installed. "
            "Install it with: pip install 'effectflow[cli]'"
        )
    app()
