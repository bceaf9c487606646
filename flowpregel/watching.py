"""Readers of runs for dashboards, which neither import nor run any user code."""

from flowpregel._inspection.call_graph import CallGraph, GraphNode, call_graph
from flowpregel._inspection.call_index import CallIndex, CallPage
from flowpregel._inspection.call_points import (
    CallPlot,
    CallPoint,
    PlotFields,
    PlotQuery,
    call_plot,
    plot_fields,
)
from flowpregel._inspection.call_query import CallQuery
from flowpregel._inspection.call_rows import (
    CALL_NUMBERS,
    CallChanges,
    CallNumber,
    CallRow,
)
from flowpregel._inspection.call_series import (
    SERIES_AXES,
    CallSeries,
    SeriesPlot,
    SeriesQuery,
    series_plot,
)
from flowpregel._inspection.call_timeline import CallTimeline
from flowpregel._inspection.error_kinds import (
    ErrorKind,
    FailedCalls,
    SharedFields,
    error_pattern,
)
from flowpregel._inspection.output_lines import (
    OutputLine,
    OutputPage,
    output_lines,
    output_page,
)
from flowpregel._inspection.preview import (
    FULL,
    ClippedText,
    OmittedItems,
    PreviewLimits,
    RecordView,
    ReprText,
    ShortenedText,
    to_json,
)
from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.run_comparison import (
    CallComparison,
    ComparedCall,
    FieldDifference,
    RunComparison,
    RunTotals,
    compare_calls,
    compare_runs,
)
from flowpregel._inspection.run_list import (
    FlowSummary,
    RunList,
    RunListPage,
    RunQuery,
    RunSummary,
    StripRun,
)
from flowpregel._inspection.run_time_left import RunTimeLeft
from flowpregel._inspection.situations import StatusText
from flowpregel._inspection.steps import StepRow, StepValues
from flowpregel._inspection.sweep_table import csv_of_calls
from flowpregel._inspection.tasks import CallPart, RunRow
from flowpregel._inspection.time_left import TimeLeft
from flowpregel._inspection.time_use import (
    CriticalPath,
    TaskTime,
    TimedCall,
    TimeUse,
    WorkerTime,
    time_use,
)
from flowpregel._inspection.user_traceback import user_traceback
from flowpregel._inspection.value_pages import ValuePage, value_page
from flowpregel._inspection.worker_usage import UsageMoment
from flowpregel._text import printable

__all__ = [
    "CALL_NUMBERS",
    "FULL",
    "SERIES_AXES",
    "CallChanges",
    "CallComparison",
    "CallGraph",
    "CallIndex",
    "CallNumber",
    "CallPage",
    "CallPart",
    "CallPlot",
    "CallPoint",
    "CallQuery",
    "CallRow",
    "CallSeries",
    "CallTimeline",
    "ClippedText",
    "ComparedCall",
    "CriticalPath",
    "ErrorKind",
    "FailedCalls",
    "FieldDifference",
    "FlowSummary",
    "GraphNode",
    "OmittedItems",
    "OutputLine",
    "OutputPage",
    "PlotFields",
    "PlotQuery",
    "PreviewLimits",
    "RecordView",
    "ReprText",
    "RunComparison",
    "RunList",
    "RunListPage",
    "RunQuery",
    "RunRow",
    "RunSummary",
    "RunTimeLeft",
    "RunTotals",
    "SeriesPlot",
    "SeriesQuery",
    "SharedFields",
    "ShortenedText",
    "StatusText",
    "StepRow",
    "StepValues",
    "StoreReader",
    "StripRun",
    "TaskTime",
    "TimeLeft",
    "TimeUse",
    "TimedCall",
    "UsageMoment",
    "ValuePage",
    "WorkerTime",
    "call_graph",
    "call_plot",
    "compare_calls",
    "compare_runs",
    "csv_of_calls",
    "error_pattern",
    "output_lines",
    "output_page",
    "plot_fields",
    "printable",
    "series_plot",
    "time_use",
    "to_json",
    "user_traceback",
    "value_page",
]
