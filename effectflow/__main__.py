"""`python -m effectflow`: the `effectflow` command."""

from effectflow.cli.commands import main

main()
