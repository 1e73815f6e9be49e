"""Map-reduce: many items, each mapped in a durable step, and reduced to one value."""

from effectflow.workflows.mapreduce._job import DeadLetter, ItemFailed, JobResult
from effectflow.workflows.mapreduce._mapreduce import MapReduce

__all__ = ["DeadLetter", "ItemFailed", "JobResult", "MapReduce"]
