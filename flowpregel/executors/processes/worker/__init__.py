"""The code of a worker process, which runs one task after another."""
