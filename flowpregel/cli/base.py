"""The functions that all commands share, for packages that add a command of their own.

Importing this module requires the extra ``cli``.
"""

from flowpregel._text import size_text
from flowpregel.cli.console import (
    TRUST_OPTION,
    has_flag,
    print_note,
    print_result,
    store_command,
    thread_command,
)
from flowpregel.cli.targets import open_to_read
from flowpregel.cli.thread_calls import call_on_thread

__all__ = [
    "TRUST_OPTION",
    "call_on_thread",
    "has_flag",
    "open_to_read",
    "print_note",
    "print_result",
    "size_text",
    "store_command",
    "thread_command",
]
