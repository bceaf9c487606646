"""LangGraph's savers in flowpregel (`foreign`), and ours in LangGraph (`saver`)."""
