"""The earlier name of `migrations`, for modules that still import it."""

from effectflow.workflows.migrations import (
    Migration,
    check_migrations,
    is_of_outermost_flow,
    upgrade,
)

__all__ = ["Migration", "check_migrations", "is_of_outermost_flow", "upgrade"]
