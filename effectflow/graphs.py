"""State graphs: the names to build one, the errors it fails with, and its events for observers."""

from effectflow.builders.graph._builder import Graph as Graph, StateGraph as StateGraph
from effectflow.builders.graph._events import (
    CycleDetected as CycleDetected,
    EdgeEvaluated as EdgeEvaluated,
    NodeEnded as NodeEnded,
    NodeStarted as NodeStarted,
)
from effectflow.builders.graph._problems import InvalidGraph as InvalidGraph
from effectflow.builders.graph._visits import GraphProgress as GraphProgress
from effectflow.builders.graph._walk import (
    GraphError as GraphError,
    MaxIterationsExceeded as MaxIterationsExceeded,
    NoEdge as NoEdge,
)
