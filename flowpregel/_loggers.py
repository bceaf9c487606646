"""The loggers of flowpregel, which a program configures by their names.

As in any library, nothing is printed unless the program configures logging. A message
that a user must see in any case is a notice of a run, an error, or both.
"""

from __future__ import annotations

import logging
from typing import Final

run_log: Final = logging.getLogger("flowpregel")
"""The logger for runs, and the parent of the other loggers."""
run_log.addHandler(logging.NullHandler())
worker_log: Final = logging.getLogger("flowpregel.worker")
"""The logger for worker processes and their tasks."""
store_log: Final = logging.getLogger("flowpregel.store")
"""The logger for stores: runs that lost their lease (the claim on a thread), and
deleted history.
"""
