"""Programs that import LangGraph, and packages on top of it, and print what they do."""
