"""The services of a run as an object that a program's own tests make."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from flowpregel.runtime import Runtime


def test_a_runtime_with_its_type_of_context_is_made() -> None:
    runtime = Runtime[str](context="Hello")

    assert "Hello" == runtime.context


def test_no_attribute_of_a_runtime_is_set() -> None:
    runtime = Runtime[str](context="Hello")
    for name in ("context", "contxt"):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(runtime, name, "Goodbye")
