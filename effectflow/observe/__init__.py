"""Observers of runs. Progress and logging are observers; see `effectflow.checkpoint.Observer`."""
