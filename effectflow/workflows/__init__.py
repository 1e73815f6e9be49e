"""What users compose: workflows written as code, and lists of steps."""

from effectflow.workflows.code import workflow
from effectflow.workflows.workflow import Workflow

__all__ = ["Workflow", "workflow"]
