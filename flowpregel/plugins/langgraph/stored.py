"""flowpregel's records under the names of LangGraph's, for LangGraph's serializers.

A serializer of LangGraph stores the module and the name of a record's class. Under the
import hook, ``langgraph.types`` has flowpregel's classes, whose ``__module__`` is a
module of flowpregel. The classes here have LangGraph's names, so LangGraph can read
what flowpregel has stored. Under the hook, the stored record is read as an instance of
flowpregel's class.
"""

from __future__ import annotations

from typing import Any

from flowpregel import types

__all__ = ["Interrupt", "Overwrite", "Send", "TimeoutPolicy"]


def _named_as_in_langgraph(base: type) -> Any:
    return type(base.__name__, (base,), {"__module__": "langgraph.types"})


Interrupt: Any = _named_as_in_langgraph(types.Interrupt)
Overwrite: Any = _named_as_in_langgraph(types.Overwrite)
Send: Any = _named_as_in_langgraph(types.Send)
TimeoutPolicy: Any = _named_as_in_langgraph(types.TimeoutPolicy)
