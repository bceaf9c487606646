"""Readers of runs for dashboards: they import and run nothing of the user's."""

from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.tasks import CallChanges, CallRow, RunRow

__all__ = ["CallChanges", "CallRow", "RunRow", "StoreReader"]
