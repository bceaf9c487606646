"""The coordinator's end: the pool, its I/O thread, and its workers' links."""
