"""The engine, which performs the effects that the core requests, with drivers, nested
runs, executors and the background writer.
"""
