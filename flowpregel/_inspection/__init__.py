"""Readers of stored runs, which neither import nor run any user code."""
