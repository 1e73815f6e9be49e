"""Map-reduce: many items, each mapped in a durable step, and reduced to one value."""

from effectflow.workflows.mapreduce._mapreduce import MapReduce
from effectflow.workflows.mapreduce._results import DeadLetter, ItemFailed, JobResult

__all__ = ["DeadLetter", "ItemFailed", "JobResult", "MapReduce"]
