"""Performs what the core asks for: drivers, nested runs, executors, the background
writer.
"""
