"""What a run does next: no I/O, no threads, no clock, no randomness."""
