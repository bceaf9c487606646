"""Async methods with the signature of a sync method."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from inspect import iscoroutinefunction, signature
from typing import Any

from flowpregel._async_forms import async_form


class Lookup(ABC):
    """A class with a sync method and its async form."""

    @abstractmethod
    def get(self, key: str, *, default: int = 0) -> int:
        """Return the value of *key*."""

    @async_form(get)
    async def aget(self, *args: Any, **kwargs: Any) -> Any:
        """The async form of `get`."""
        return self.get(*args, **kwargs)


class Lengths(Lookup):
    """A class that overrides only the sync method."""

    def get(self, key: str, *, default: int = 0) -> int:
        return len(key) or default


def test_an_async_form_has_the_signature_of_its_method() -> None:
    """Its name, its docstring and its kind are its own."""
    assert signature(Lookup.get) == signature(Lookup.aget)
    assert "aget" == Lookup.aget.__name__
    assert "The async form of `get`." == Lookup.aget.__doc__
    assert iscoroutinefunction(Lookup.aget)


def test_an_async_form_of_an_abstract_method_is_not_abstract() -> None:
    """A subclass that overrides the method has the async form too."""
    assert 3 == asyncio.run(Lengths().aget("abc"))
    assert 7 == asyncio.run(Lengths().aget("", default=7))
