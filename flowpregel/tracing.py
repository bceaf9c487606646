"""Traces of runs, for authors of a plug-in for a tracing system.

`flowpregel.plugins.opentelemetry` is such a plug-in.
"""

from flowpregel._core.tracing import (
    CallEnd,
    RunTracer,
    TracedCall,
    TracedRun,
    set_tracer,
)

__all__ = ["CallEnd", "RunTracer", "TracedCall", "TracedRun", "set_tracer"]
