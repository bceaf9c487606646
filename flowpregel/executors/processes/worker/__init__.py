"""The worker's end: one process that runs one task after another."""
