"""The workflow that the benchmarks of durable steps run: it counts, a step for each number."""

from __future__ import annotations

from dataclasses import dataclass

from effectflow import Checkpoints, Do, Effect, pure, step, workflow

__all__ = ["App", "count_to", "increment"]


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints


@step
def increment(number: int) -> Effect[object, str, int]:
    return pure(number + 1)


@workflow
def count_to(steps: int) -> Do[App, str, int]:
    number = 0
    for _ in range(steps):
        number = yield from increment(number)
    return number
