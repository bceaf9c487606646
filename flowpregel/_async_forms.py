"""The signatures of async methods that take the arguments of a sync method."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, ParamSpec, TypeVar

Params = ParamSpec("Params")
Result = TypeVar("Result")

__all__ = ["async_form"]


def async_form(
    method: Callable[Params, Result],
) -> Callable[
    [Callable[..., Coroutine[Any, Any, Any]]],
    Callable[Params, Coroutine[Any, Any, Result]],
]:
    """Return a decorator that gives an async method the signature of *method*, for type
    checkers and for `inspect.signature`.

    Args:
        method: The sync method of the class, which the async method should call by its
            name, because a subclass may override it.

    Example:
        >>> from typing import Any
        >>> class Cache:
        ...     def get(self, key: str, *, default: int = 0) -> int:
        ...         return default
        ...
        ...     @async_form(get)
        ...     async def aget(self, *args: Any, **kwargs: Any) -> Any:
        ...         return self.get(*args, **kwargs)
        >>> from inspect import signature
        >>> str(signature(Cache().aget))
        "(key: 'str', *, default: 'int' = 0) -> 'int'"
    """

    def with_signature(form: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        # The attributes of an abstract method would make the async form abstract too,
        # so no attribute is copied.
        return update_wrapper(form, method, assigned=(), updated=())

    return with_signature
