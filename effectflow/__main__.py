"""`python -m effectflow`: the `effectflow` command."""

from effectflow.cli.app import main

main()
