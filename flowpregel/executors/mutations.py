"""Notices about arguments that a task changes in place (``check_mutations=True``).

A task on this process's OS threads or event loop gets the caller's own objects, and a
task in a worker process gets copies. So a change of an argument in place is visible to
the caller on some executors, and lost on others. It is detected on all of them, by a
digest of the arguments before and after the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from flowpregel._annotations import signature_of
from flowpregel._core.effects import Notice
from flowpregel._core.records import Arguments
from flowpregel._pickling.copies import IMMUTABLE
from flowpregel._pickling.digest import digest_of
from flowpregel.context import Scope
from flowpregel.executors.handles import UnwrappedArguments

Position: TypeAlias = int | str
"""The position of a positional argument, or the name of a keyword argument."""


class MutationCheck:
    """The digests of a call's arguments before the call, to be compared afterwards.

    These arguments are not checked: values that cannot change; values that cannot be
    digested, which cannot be sent to a worker process either; values that define their
    own digest, such as a `File`; and shared values (`shared`), of which each task has
    its own copy anyway.

    Args:
        arguments: The arguments of the call.
    """

    def __init__(self, arguments: Arguments) -> None:
        # Arguments that were pickled at the time of the call are unpickled again at
        # each access of ``args`` and ``kwargs``, so these are read only once.
        self.arguments: Arguments = Arguments(arguments.args, arguments.kwargs)
        """The arguments to pass to the function."""
        self._digests: dict[Position, str] = {}
        private: frozenset[Position] = frozenset()
        if isinstance(arguments, UnwrappedArguments):
            private = arguments.unwrapped
        for position, argument in self._items():
            kind = type(argument)
            if position in private or kind in IMMUTABLE:
                continue
            if hasattr(kind, "__flowpregel_digest__"):
                continue
            digest = _digest_or_none(argument)
            if digest is not None:
                self._digests[position] = digest

    def _items(self) -> Iterator[tuple[Position, Any]]:
        """Yield the position and the value of each argument."""
        yield from enumerate(self.arguments.args)
        yield from self.arguments.kwargs.items()

    def emit_notice(self, function: Any, result: Any, scope: Scope) -> None:
        """Give the run's user a notice if arguments have changed during the call.

        Args:
            function: The function that was called.
            result: The result of the call, or None if it has failed. An argument that
                is the result, or that the result directly contains, is left out,
                because the caller gets the changed value with the result.
            scope: The scope of the attempt.
        """
        positions = self._changed_positions(result)
        if not positions:
            return
        task = scope.job.task.name
        names = [_parameter_name(function, position) for position in positions]
        notice = Notice(
            text=_notice_text(task, names),
            subject=f"mutation {task}",
        )
        scope.run_client.emit(notice)

    def _changed_positions(self, result: Any) -> list[Position]:
        """Return the positions of changed arguments that *result* does not contain."""
        positions = []
        for position, argument in self._items():
            digest = self._digests.get(position)
            if digest is None:
                continue
            if _is_returned(argument, result):
                continue
            if _digest_or_none(argument) != digest:
                positions.append(position)
        return positions


def _notice_text(task: str, names: Sequence[str]) -> str:
    arguments = " and ".join(map(repr, names))
    subject = f"argument {arguments} of task {task!r} was"
    if len(names) > 1:
        subject = f"arguments {arguments} of task {task!r} were"
    return (
        f"{subject} changed during the call; if the task runs in a worker process, its "
        "caller does not see that: return the changed value, or change a copy"
    )


def _digest_or_none(value: Any) -> str | None:
    """Return a digest of the content of *value*, or None if *value* need not be
    checked.
    """
    try:
        return digest_of(value, strict=True)
    except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything
        return None


def _is_returned(argument: Any, result: Any) -> bool:
    """Return whether *result* is, or directly contains, *argument*."""
    parts: Sequence[Any] = ()
    if isinstance(result, list | tuple):
        parts = result
    elif isinstance(result, dict):
        parts = [*result.values()]
    return result is argument or any(part is argument for part in parts)


def _parameter_name(function: Any, position: Position) -> str:
    """Return the name of the parameter of *function* that gets an argument."""
    if isinstance(position, str):
        return position
    try:
        parameters = [*signature_of(function).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    for index, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return f"{parameter.name}[{position - index}]"
        if index == position:
            return parameter.name
    return f"args[{position}]"
