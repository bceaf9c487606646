"""Readers of runs for dashboards, which neither import nor run any user code."""

from flowpregel._inspection.call_index import CallIndex, CallPage
from flowpregel._inspection.call_query import CallQuery
from flowpregel._inspection.preview import PreviewLimits, RecordView, ReprText, to_json
from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.run_list import (
    FlowSummary,
    RunList,
    RunListPage,
    RunQuery,
    RunSummary,
)
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
    "FlowSummary",
    "PreviewLimits",
    "RecordView",
    "ReprText",
    "RunList",
    "RunListPage",
    "RunQuery",
    "RunRow",
    "RunSummary",
    "StatusText",
    "StepRow",
    "StepValues",
    "StoreReader",
    "printable",
    "to_json",
]
