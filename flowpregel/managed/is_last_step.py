"""LangGraph's import path of the managed values."""

from flowpregel.managed import IsLastStep, RemainingSteps, RemainingStepsManager

__all__ = ["IsLastStep", "RemainingSteps", "RemainingStepsManager"]
