"""Workflows and their runs: what a start, a resume and a plan do."""

from effectflow.runs.migrations import StepMigration as StepMigration
from effectflow.runs.workflow import Workflow as Workflow
