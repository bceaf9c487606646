"""The rules of `flowpregel.testing.store_contract`, a file for each kind."""

import pytest

_MODULES = ("finding", "keeping", "hooks")

# Before any of them is imported: their asserts are to explain themselves.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES))
