"""Graphs of a simple shape."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from effectflow.graphs import Graph, StateGraph

AnyGraph = Graph[Any, Any, Any]


def line(name: str = "g", /, **nodes: Any) -> AnyGraph:
    """Return a graph whose nodes follow each other, from the first to the last."""
    graph: StateGraph[Any, Any, Any] = StateGraph(name)
    return lined(graph, **nodes).build()


def lined(graph: Any, /, **nodes: Any) -> Any:
    """Add nodes that follow each other, from the entry to the exit."""
    names = list(nodes)
    for node, function in nodes.items():
        graph.node(node, function)
    for source, target in pairwise(names):
        graph.edge(source, target)
    return graph.entry(names[0]).exit(names[-1])


def branched(branches: Any, merge: Any, name: str = "g") -> AnyGraph:
    """Return a graph of one parallel node, `both`."""
    graph: StateGraph[Any, Any, Any] = StateGraph(name)
    return graph.parallel("both", branches, merge).entry("both").exit("both").build()
