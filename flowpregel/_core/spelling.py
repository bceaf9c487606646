"""The ways to spell one call: equal spellings are equal calls.

``work(0)``, ``work(x=0)`` and ``work(0, deep=False)``, where False is the default,
request the same. All of them get the digest of the first one. The digest leaves out
arguments that equal their defaults. It has the arguments before the first one that is
left out by position, and all others by name. So a new parameter with a default does not
change the digest of earlier calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from flowpregel._annotations import signature_of
from flowpregel._core.files import FileContent, with_files
from flowpregel._core.records import Arguments, Node
from flowpregel._pickling.digest import have_equal_content, plain_digest

Spelled: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The positional and the keyword arguments of a call."""
_EXACT: frozenset[type] = frozenset({int, str, bytes, bool, type(None)})
"""Types whose values have the same content, and so the same digest, whenever they are
equal.
"""
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


@dataclass(frozen=True, slots=True, eq=False)
class Spelling:
    """The parameters of a function, which determine the canonical spelling of a
    call.
    """

    signature: inspect.Signature | None = None
    """The signature of the function, or None if it cannot be read. In that case, each
    spelling is a different call.
    """
    plain: int = 0
    """The number of positional parameters without a default, which come first."""
    defaults: tuple[Any, ...] = ()
    """The defaults of the positional parameters that follow the parameters without a
    default.
    """

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Spelled:
        """Return the canonical spelling of a call."""
        if self.signature is None or self.is_spelled(args, kwargs):
            return args, kwargs
        try:
            bound = self.signature.bind_partial(*args, **kwargs)
        except TypeError:
            # The arguments do not fit the parameters, so the call will fail. They are
            # recorded unchanged.
            return args, kwargs
        return _spelled(args, bound)

    def is_spelled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call already has the canonical spelling."""
        if self.signature is None:
            return True
        if kwargs:
            return False
        if len(args) <= self.plain:
            return True
        more = args[self.plain :]
        if len(more) > len(self.defaults):
            return False
        return not any(map(is_default, more, self.defaults))

    def digest_and_files(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        take_digest: Callable[[Any, Any], str],
    ) -> tuple[str, tuple[FileContent, ...]]:
        """Return the digest of a call's arguments, and the files among them.

        Args:
            args: The positional arguments of the call.
            kwargs: The keyword arguments of the call.
            take_digest: A function that returns the digest of arguments in canonical
                spelling, and notes the files.
        """
        plain = plain_digest(args, kwargs)
        if plain is not None and self.is_spelled(args, kwargs):
            return plain, ()
        return with_files(lambda: take_digest(*self.of(args, kwargs)))

    def without_first(self) -> Spelling:
        """Return the spelling of the same function without its first parameter."""
        if self.signature is None or not self.signature.parameters:
            return self
        _, *others = self.signature.parameters.values()
        return _spelling(self.signature.replace(parameters=others))


def spelling_of(function: Any) -> Spelling:
    """Return the `Spelling` of *function*."""
    try:
        return _spelling(signature_of(function))
    except (TypeError, ValueError):
        return Spelling()


def _spelling(signature: inspect.Signature) -> Spelling:
    plain = 0
    defaults: list[Any] = []
    for parameter in signature.parameters.values():
        if parameter.kind not in _POSITIONAL:
            continue
        if parameter.default is parameter.empty:
            plain += 1
        else:
            defaults.append(parameter.default)
    return Spelling(signature, plain, tuple(defaults))


def _spelled(args: tuple[Any, ...], bound: inspect.BoundArguments) -> Spelled:
    """Return the canonical spelling of a call.

    Args:
        args: The arguments that the call gives by position.
        bound: All arguments of the call, bound to the signature.
    """
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for index, parameter in _parameters_to_spell(bound):
        argument = bound.arguments[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            # If ``*args`` has items, all arguments before them must be positional too.
            # So the positional arguments are left as the caller wrote them.
            positional = [*args]
            named = {}
        elif parameter.kind is parameter.VAR_KEYWORD:
            named.update(argument)
        elif parameter.kind in _POSITIONAL and index == len(positional):
            positional.append(argument)
        else:
            named[parameter.name] = argument
    return tuple(positional), named


def _parameters_to_spell(
    bound: inspect.BoundArguments,
) -> Iterator[tuple[int, inspect.Parameter]]:
    """Yield the parameters whose arguments differ from the default, each with its
    index in the signature.
    """
    for index, parameter in enumerate(bound.signature.parameters.values()):
        if parameter.name not in bound.arguments:
            continue
        if not is_default(bound.arguments[parameter.name], parameter.default):
            yield index, parameter


_BY_NODE: WeakKeyDictionary[Node, Spelling] = WeakKeyDictionary()


def spelled_by_node(node: Node, arguments: Arguments) -> Spelled:
    """Return the canonical spelling of a call of *node* with *arguments*: the same for
    ``f(1)`` and ``f(x=1)``, if ``x`` is the first parameter of the node's function.
    """
    spelling = _BY_NODE.get(node)
    if spelling is None:
        (callee,) = node.steps
        spelling = spelling_of(callee.func or callee.coroutine)
        _BY_NODE[node] = spelling
    return spelling.of(arguments.args, arguments.kwargs)


def is_default(value: Any, default: Any) -> bool:
    """Return whether *value* has the same content as *default*, the default of a
    parameter.
    """
    if value is default:
        return True
    if type(value) is not type(default):
        return False
    if type(value) in _EXACT:
        return bool(value == default)
    return have_equal_content(value, default)
