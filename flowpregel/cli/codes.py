"""What the command's exit codes mean."""

from __future__ import annotations

from enum import IntEnum

from flowpregel.errors import (
    ConfigurationError,
    EmptyInputError,
    InputMismatchError,
    StoreError,
    UnknownInterruptError,
)


class Code(IntEnum):
    """How the command ended."""

    OK = 0
    FAILED = 1
    """The run failed, or a check did."""
    USAGE = 2
    """What was asked cannot be done: an unknown thread, a wrong input, no such flow."""
    WAITING = 3
    """The run waits for an answer."""
    STORE = 4
    """The store cannot be used, is damaged, or its thread is in use."""
    STOPPED = 130
    """Ctrl-C or ``cancel``; what had finished is kept."""


_USAGE = (ConfigurationError, EmptyInputError, InputMismatchError, UnknownInterruptError)


def is_refusal(error: BaseException) -> bool:
    """Return whether *error* says that what was asked cannot be done, and no task failed."""
    return isinstance(error, (StoreError, *_USAGE))


def code_of(error: BaseException) -> Code:
    """Return the exit code for *error*."""
    if isinstance(error, StoreError):
        return Code.STORE
    return Code.USAGE if isinstance(error, _USAGE) else Code.FAILED
