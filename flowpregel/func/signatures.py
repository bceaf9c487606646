"""The types with which type checkers check the arguments of tasks and runs.

A parameter that the run fills in is not an argument of a call: ``@task def g(x: float,
runtime: Runtime)`` is called as ``g(1.0)``. Python's types can express a signature
without its first parameter (`FirstRuntime`), but not a signature without a later
parameter. So for such functions there is one Protocol for each number of arguments:
`Runtime2` matches a function that can be called with two positional arguments and
``runtime=``. The arguments of a function with any keyword arguments (`Open1`) or with
defaults (`Optional1`) are not checked.

The arguments of a workflow are passed together with the options of a run, which
Python's types cannot express either. So `Takes2` matches a workflow that can be run
with two arguments.
"""

from __future__ import annotations

from typing import Any, Never, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
A_in = TypeVar("A_in", contravariant=True)
B_in = TypeVar("B_in", contravariant=True)
C_in = TypeVar("C_in", contravariant=True)
D_in = TypeVar("D_in", contravariant=True)

# ---------------------------------------------------------------- task functions


class FirstRuntime(Protocol[P, R_co]):
    """A function whose first parameter is ``runtime``."""

    def __call__(self, runtime: Any, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class FirstConfig(Protocol[P, R_co]):
    """A function whose first parameter is ``config``."""

    def __call__(self, config: Any, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class FirstWriter(Protocol[P, R_co]):
    """A function whose first parameter is ``writer``."""

    def __call__(self, writer: Any, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Runtime0(Protocol[R_co]):
    """A function whose only parameter is the keyword ``runtime``."""

    def __call__(self, *, runtime: Any) -> R_co: ...


class Runtime1(Protocol[A_in, R_co]):
    """A function of one positional argument and the keyword ``runtime``."""

    def __call__(self, a: A_in, /, *, runtime: Any) -> R_co: ...


class Runtime2(Protocol[A_in, B_in, R_co]):
    """A function of two positional arguments and the keyword ``runtime``."""

    def __call__(self, a: A_in, b: B_in, /, *, runtime: Any) -> R_co: ...


class Runtime3(Protocol[A_in, B_in, C_in, R_co]):
    """A function of three positional arguments and the keyword ``runtime``."""

    def __call__(self, a: A_in, b: B_in, c: C_in, /, *, runtime: Any) -> R_co: ...


class Runtime4(Protocol[A_in, B_in, C_in, D_in, R_co]):
    """A function of four positional arguments and the keyword ``runtime``."""

    def __call__(
        self, a: A_in, b: B_in, c: C_in, d: D_in, /, *, runtime: Any
    ) -> R_co: ...


class Config1(Protocol[A_in, R_co]):
    """A function of one positional argument and the keyword ``config``."""

    def __call__(self, a: A_in, /, *, config: Any) -> R_co: ...


class Config2(Protocol[A_in, B_in, R_co]):
    """A function of two positional arguments and the keyword ``config``."""

    def __call__(self, a: A_in, b: B_in, /, *, config: Any) -> R_co: ...


class Writer1(Protocol[A_in, R_co]):
    """A function of one positional argument and the keyword ``writer``."""

    def __call__(self, a: A_in, /, *, writer: Any) -> R_co: ...


class Writer2(Protocol[A_in, B_in, R_co]):
    """A function of two positional arguments and the keyword ``writer``."""

    def __call__(self, a: A_in, b: B_in, /, *, writer: Any) -> R_co: ...


class Open0(Protocol[R_co]):
    """A function of any keyword arguments."""

    def __call__(self, *, any_name: Never) -> R_co: ...


class Open1(Protocol[R_co]):
    """A function of one argument and any keyword arguments."""

    def __call__(self, a: Never, /, *, any_name: Never) -> R_co: ...


class Open2(Protocol[R_co]):
    """A function of two arguments and any keyword arguments."""

    def __call__(self, a: Never, b: Never, /, *, any_name: Never) -> R_co: ...


class Open3(Protocol[R_co]):
    """A function of three arguments and any keyword arguments."""

    def __call__(self, a: Never, b: Never, c: Never, /, *, any_name: Never) -> R_co: ...


class Optional1(Protocol[R_co]):
    """A function of one argument, which has a default, and ``runtime``."""

    def __call__(self, a: Never = ..., /, *, runtime: Never) -> R_co: ...


class Optional2(Protocol[R_co]):
    """A function of two arguments, the last with a default, and ``runtime``."""

    def __call__(self, a: Never, b: Never = ..., /, *, runtime: Never) -> R_co: ...


class Optional3(Protocol[R_co]):
    """A function of three arguments, the last with a default, and ``runtime``."""

    def __call__(
        self, a: Never, b: Never, c: Never = ..., /, *, runtime: Never
    ) -> R_co: ...


# ---------------------------------------------------------------- workflows


class Takes0(Protocol[R_co]):
    """A workflow that can be run with no argument."""

    def call(self) -> R_co: ...


class Takes1(Protocol[A_in, R_co]):
    """A workflow that can be run with one argument."""

    def call(self, a: A_in, /) -> R_co: ...


class Takes2(Protocol[A_in, B_in, R_co]):
    """A workflow that can be run with two arguments."""

    def call(self, a: A_in, b: B_in, /) -> R_co: ...


class Takes3(Protocol[A_in, B_in, C_in, R_co]):
    """A workflow that can be run with three arguments."""

    def call(self, a: A_in, b: B_in, c: C_in, /) -> R_co: ...


class Takes4(Protocol[A_in, B_in, C_in, D_in, R_co]):
    """A workflow that can be run with four arguments."""

    def call(self, a: A_in, b: B_in, c: C_in, d: D_in, /) -> R_co: ...


class TakesFirst(Protocol[A_in, P, R_co]):
    """A workflow that can be run with one argument and further arguments."""

    def call(self, a: A_in, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
