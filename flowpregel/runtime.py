"""What a run offers its tasks; defined in `flowpregel.taskruntime` and `flowpregel.context`."""

from flowpregel.context import RunControl, report_progress
from flowpregel.taskruntime import ExecutionInfo, Runtime, get_runtime

__all__ = ["ExecutionInfo", "RunControl", "Runtime", "get_runtime", "report_progress"]
