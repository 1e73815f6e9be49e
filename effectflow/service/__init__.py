"""Drive durable work in a long-running process: stop it in an orderly way on signals."""

from effectflow.service.signals import StoppedBySignal, run_until_signal

__all__ = ["StoppedBySignal", "run_until_signal"]
