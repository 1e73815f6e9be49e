"""Map-reduce jobs: the names to build one, its results and failures, and its progress."""

from effectflow.builders.kinds import job_history as job_history, job_progress as job_progress
from effectflow.builders.mapreduce._mapreduce import MapReduce as MapReduce
from effectflow.builders.mapreduce._results import (
    DeadLetter as DeadLetter,
    ItemFailed as ItemFailed,
    ItemFailure as ItemFailure,
    JobResult as JobResult,
    TooManyFailures as TooManyFailures,
)
from effectflow.builders.progress import JobPhase as JobPhase, JobProgress as JobProgress
