"""LangGraph's import path of the managed values; they are defined in `flowpregel.managed`."""

from flowpregel.managed import (
    IsLastStep,
    IsLastStepManager,
    RemainingSteps,
    RemainingStepsManager,
)

__all__ = ["IsLastStep", "IsLastStepManager", "RemainingSteps", "RemainingStepsManager"]
