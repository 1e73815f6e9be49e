"""What the checkers infer for graphs, and hold nodes to. Never run: checked by pyright and mypy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Never, Protocol, assert_type

from effectflow import CheckpointError, Checkpoints, Do, Effect, do, pure, step, workflow
from effectflow.checkpoint import Checkpoint, ResumePlan, run_context
from effectflow.graphs import Graph, GraphError, GraphProgress, StateGraph


class HasModel(Protocol):
    """What some of the nodes need."""

    @property
    def model(self) -> str: ...


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    model: str


@dataclass(frozen=True)
class Draft:
    text: str


class ReviewError(Exception): ...


class Refused(ReviewError): ...


class OtherError(Exception): ...


class Verdict(Enum):
    GOOD = 1
    BAD = 2


def write(draft: Draft) -> Effect[App, Never, Draft]:
    return pure(draft)


def ask_model(draft: Draft) -> Effect[HasModel, Refused, Draft]:
    return pure(draft)


@do
def revise(draft: Draft) -> Do[App, ReviewError, Draft]:
    return (yield from write(draft))


@step(at_most_once=True)
def publish(draft: Draft) -> Effect[App, ReviewError, Draft]:
    return pure(draft)


@workflow
def polish(draft: Draft) -> Do[App, ReviewError, Draft]:
    return (yield from write(draft))


def count_words(draft: Draft) -> Effect[App, Refused, int]:
    return pure(len(draft.text))


def join(draft: Draft, counts: Mapping[str, int]) -> Draft:
    return draft


def is_good(draft: Draft) -> bool:
    return bool(draft.text)


def judge(draft: Draft) -> Verdict:
    return Verdict.GOOD


inner = (
    StateGraph[App, Refused, Draft]("inner").node("ask", ask_model).entry("ask").exit("ask").build()
)
assert_type(inner, Graph[App, Refused | GraphError, Draft])

review = (
    StateGraph[App, ReviewError, Draft]("review", version="2", max_iterations=50)
    .node("write", write)
    .node("ask", ask_model)
    .node("revise", revise)
    .node("polish", polish)
    .node("inner", inner)
    .node("as it is", lambda draft: pure(Draft(draft.text)))
    .node("publish", publish)
    .parallel("count", {"words": count_words, "more": count_words}, join)
    .parallel("length", {"one": count_words}, lambda draft, counts: Draft(str(counts["one"] + 1)))
    .edge("write", "ask", when=is_good)
    .edge("write", "revise", when=lambda draft: draft.text == "", label="is empty")
    .route("ask", judge, {Verdict.GOOD: "publish", Verdict.BAD: "revise"})
    .entry("write")
    .exit("publish")
    .build()
)
assert_type(review, Graph[App, ReviewError | GraphError, Draft])
assert_type(review.start(Draft("")), Effect[App, ReviewError | GraphError | CheckpointError, Draft])
assert_type(review.resume("r"), Effect[App, ReviewError | GraphError | CheckpointError, Draft])
assert_type(review.body(Draft("")), Effect[App, ReviewError | GraphError, Draft])
assert_type(review.plan("r"), Effect[App, CheckpointError, ResumePlan])
assert_type(review.to_mermaid(), str)


def look(checkpoint: Checkpoint) -> None:
    assert_type(review.progress(checkpoint), GraphProgress)
    assert_type(review.to_mermaid(checkpoint), str)


assert_type(run_context(), Effect[object, Never, Mapping[str, object]])

# What must be rejected.


@dataclass(frozen=True)
class Letter:
    text: str


def of_a_letter(letter: Letter) -> Effect[App, ReviewError, Letter]:
    return pure(letter)


def with_another_error(draft: Draft) -> Effect[App, OtherError, Draft]:
    return pure(draft)


class Printer:
    paper: int


def of_a_printer(draft: Draft) -> Effect[Printer, ReviewError, Draft]:
    return pure(draft)


graph = StateGraph[App, ReviewError, Draft]("refused")
graph.node("state", of_a_letter)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.node("error", with_another_error)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.node("environment", of_a_printer)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.node("value", lambda draft: pure(draft.text))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.edge("a", "b", when=lambda draft: draft.words > 3)  # type: ignore[attr-defined]  # pyright: ignore[reportUnknownMemberType, reportUnknownLambdaType, reportAttributeAccessIssue]
graph.edge("a", "b", when=of_a_letter)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.route("a", judge, {"GOOD": "b"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.parallel("merge", {"words": count_words}, lambda draft, counts: counts["words"])  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
graph.parallel("errors", {"other": with_another_error}, lambda draft, _: draft)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
review.start("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
StateGraph[str, ReviewError, Draft]("without checkpoints")  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]
