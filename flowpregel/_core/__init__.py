"""The decisions of a run: no I/O, no threads, no clock, no randomness."""
