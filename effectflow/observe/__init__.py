"""See what runs do: fields of log records, traces and metrics of OpenTelemetry.

Nothing here is imported by the rest of the package, and OpenTelemetry only with its first use.
"""

from typing import TYPE_CHECKING

from effectflow.effects.imports import lazy_names

if TYPE_CHECKING:
    from effectflow.observe.logs import (
        Fields as Fields,
        ReplayFilter as ReplayFilter,
        RunFields as RunFields,
        run_fields as run_fields,
    )
    from effectflow.observe.otel import OpenTelemetry as OpenTelemetry

if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {"logs": "Fields ReplayFilter RunFields run_fields", "otel": "OpenTelemetry"},
    )
