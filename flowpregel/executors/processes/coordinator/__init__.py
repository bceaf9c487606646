"""The coordinator's side of a pool of worker processes: the pool, its I/O thread, and
its ends of the workers' links.
"""
