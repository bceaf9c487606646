"""The decisions of a run: no I/O, no OS threads, no clock, no randomness."""
