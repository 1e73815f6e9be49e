"""Map-reduce: many items, each a durable step, reduced to one value."""

from effectflow.workflows.mapreduce.job import MapReduce
from effectflow.workflows.mapreduce.results import DeadLetter, ItemFailed, JobResult

__all__ = ["DeadLetter", "ItemFailed", "JobResult", "MapReduce"]
