"""Recorded tracebacks without the library's frames and notes, for a reader."""

from __future__ import annotations

import re
from typing import Final

_CAUSE: Final = re.compile(
    r"^(The above exception was the direct cause of the following exception:|"
    r"During handling of the above exception, another exception occurred:)\n",
    re.M,
)
_WORKER: Final = re.compile(r"^flowpregel\._tracebacks\.WorkerTraceback: *\n", re.M)
_NOTE: Final = re.compile(r"^During task with name .* and id .*\n?", re.M)
_OURS: Final = re.compile(
    r'^  File "[^"]*[/\\]flowpregel[/\\](?:_\w+|channels|checkpoint|executors|func|'
    r'graph|pregel|plugins|storage|store)[/\\.][^"]*", line .*\n(?:    .*\n)*',
    re.M,
)
_FRAME: Final = '  File "'


def user_traceback(text: str) -> str:
    """Return a recorded traceback without the frames and notes of flowpregel.

    An exception without frames is left out if its cause has the same last line: the
    coordinator raises again the exception that a worker has raised.

    Args:
        text: The recorded traceback.

    Example:
        >>> recorded = '''flowpregel._tracebacks.WorkerTraceback:
        ...
        ... Traceback (most recent call last):
        ...   File "sweep.py", line 12, in train
        ...     raise ValueError("no")
        ... ValueError: no
        ...
        ...
        ... The above exception was the direct cause of the following exception:
        ...
        ... ValueError: no
        ... During task with name 'train' and id '64' (attempt 1, worker 25806)
        ... '''
        >>> print(user_traceback(recorded))
        Traceback (most recent call last):
          File "sweep.py", line 12, in train
            raise ValueError("no")
        ValueError: no
    """
    for unwanted in (_WORKER, _NOTE, _OURS):
        text = unwanted.sub("", text)
    parts = [part.strip("\n") for part in _CAUSE.split(text)]
    errors = parts[:1]
    # Between the tracebacks of two chained exceptions there is a sentence, such as
    # "During handling of the above exception, ...", which is kept only with the second
    # exception.
    for sentence, error in zip(parts[1::2], parts[2::2], strict=True):
        if _FRAME in error or not errors[-1].endswith(error):
            errors += [sentence, error]
    return "\n\n".join(errors)
