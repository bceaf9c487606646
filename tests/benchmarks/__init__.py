"""Speed beside the peers, in one run: ``python -m tests.benchmarks``."""
