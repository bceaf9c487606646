"""Our savers in LangGraph; its savers in flowpregel need no integration, just pass them."""
