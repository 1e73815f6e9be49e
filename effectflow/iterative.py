"""Iterations: a workflow that repeats a step until its value converges, and its result."""

from effectflow.builders.iterative import (
    Iterative as Iterative,
    IterativeResult as IterativeResult,
)
