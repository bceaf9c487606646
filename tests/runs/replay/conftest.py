"""Replay is tested as functional workflows are: in each kind of place."""

from tests.runs.functional.conftest import executor

__all__ = ["executor"]
