"""Functions for code inside a run; defined in `flowpregel.context`."""

from flowpregel.context import (
    get_config,
    get_store,
    get_stream_writer,
    get_trace_context,
)

__all__ = ["get_config", "get_store", "get_stream_writer", "get_trace_context"]
