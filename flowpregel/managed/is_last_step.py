"""LangGraph's import path of the managed values; they are defined in
`flowpregel.managed`.
"""

from flowpregel.managed import IsLastStep, RemainingSteps, RemainingStepsManager

__all__ = ["IsLastStep", "RemainingSteps", "RemainingStepsManager"]
