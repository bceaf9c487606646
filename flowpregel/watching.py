"""Readers of runs for dashboards, which neither import nor run any user code."""

from flowpregel._inspection.call_index import CallIndex, CallPage
from flowpregel._inspection.call_query import CallQuery
from flowpregel._inspection.preview import PreviewLimits, RecordView, ReprText, to_json
from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.situations import StatusText
from flowpregel._inspection.steps import StepRow, StepValues
from flowpregel._inspection.tasks import CallChanges, CallRow, RunRow
from flowpregel._text import printable

__all__ = [
    "CallChanges",
    "CallIndex",
    "CallPage",
    "CallQuery",
    "CallRow",
    "PreviewLimits",
    "RecordView",
    "ReprText",
    "RunRow",
    "StatusText",
    "StepRow",
    "StepValues",
    "StoreReader",
    "printable",
    "to_json",
]
