"""What a run offers its tasks; defined in `flowpregel.context`."""

from flowpregel.context import ExecutionInfo, RunControl, Runtime, get_runtime, report_progress

__all__ = ["ExecutionInfo", "RunControl", "Runtime", "get_runtime", "report_progress"]
