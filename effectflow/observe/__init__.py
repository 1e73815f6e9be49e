"""See what runs do: why they are where they are, fields of log records, traces and metrics.

Modules here are imported on first use, OpenTelemetry too.
"""

from typing import TYPE_CHECKING

from effectflow.effects.imports import lazy_names

if TYPE_CHECKING:
    from effectflow.builders.diagrams import (
        Arrow as Arrow,
        Box as Box,
        Diagram as Diagram,
        to_mermaid as to_mermaid,
    )
    from effectflow.builders.pictures import to_svg as to_svg
    from effectflow.builders.shapes import shape_of as shape_of
    from effectflow.observe.explanation import (
        Explanation as Explanation,
        Move as Move,
        UnknownOutcome as UnknownOutcome,
        explain_run as explain_run,
    )
    from effectflow.observe.logs import (
        Fields as Fields,
        ReplayFilter as ReplayFilter,
        RunFields as RunFields,
        run_fields as run_fields,
    )
    from effectflow.observe.operations import (
        Attempt as Attempt,
        Operation as Operation,
        operations_of as operations_of,
    )
    from effectflow.observe.otel import OpenTelemetry as OpenTelemetry
    from effectflow.observe.overview import (
        Overview as Overview,
        Process as Process,
        QueueLoad as QueueLoad,
        read_overview as read_overview,
    )
    from effectflow.observe.step_nodes import StepNode as StepNode, step_tree as step_tree
    from effectflow.observe.timeline import (
        Bar as Bar,
        Lane as Lane,
        Timeline as Timeline,
        timeline_of as timeline_of,
    )
    from effectflow.observe.timeline_picture import timeline_svg as timeline_svg
    from effectflow.observe.workers import (
        KnownWorker as KnownWorker,
        known_workers as known_workers,
    )

if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".builders.diagrams": "Arrow Box Diagram to_mermaid",
            ".builders.pictures": "to_svg",
            ".builders.shapes": "shape_of",
            "explanation": "Explanation Move UnknownOutcome explain_run",
            "logs": "Fields ReplayFilter RunFields run_fields",
            "operations": "Attempt Operation operations_of",
            "otel": "OpenTelemetry",
            "step_nodes": "StepNode step_tree",
            "overview": "Overview Process QueueLoad read_overview",
            "timeline": "Bar Lane Timeline timeline_of",
            "timeline_picture": "timeline_svg",
            "workers": "KnownWorker known_workers",
        },
    )
