"""What stands for the result of a call, and refuses to be used as if it were the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn


class Unresolved:
    """Stands for the result of a call, and refuses to be used as if it were the result."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            "this is the future of a call, not what the call returns: write future.result() "
            "(in async code: await future)"
        )

    if not TYPE_CHECKING:  # type checkers refuse all of this by themselves

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"the future of a call has no {name!r}: for that of what the call returns, write "
                f"future.result().{name} (in async code: (await future).{name})"
            )

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
        __pow__ = __rpow__ = __neg__ = __abs__ = __round__ = __int__ = __float__ = _refuse
        __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __format__ = _refuse
        __iter__ = __len__ = __contains__ = __getitem__ = __setitem__ = __index__ = _refuse
