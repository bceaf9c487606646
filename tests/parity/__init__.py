"""The same graph, built and run on LangGraph and on flowpregel."""
