"""Plug-ins: stores, executors and commands that installed packages add.

flowpregel's own plug-ins, most of which need an extra, are the packages and modules
here. They are found, as those of other packages are, by the entry points that the
package declares.

=======================  ==============================  =============================
group                    name                            value
=======================  ==============================  =============================
``flowpregel.stores``    the scheme of the URLs         a class derived from
                                                         `StorePlugin`
``flowpregel.executors`` the scheme of the URLs, or the  a function of what follows
                         executor's whole name           ``://`` that returns an
                                                         `Executor`
``flowpregel.commands``  the name of the command         a ``click.Command``
=======================  ==============================  =============================
"""

from flowpregel._core.effects import ModelMessage, ToolEvent
from flowpregel._core.stream_events import EndedTask
from flowpregel._stores import StoreCheck, StorePlugin, store_plugin_at
from flowpregel.executors.base import ExecutorCheck

__all__ = [
    "EndedTask",
    "ExecutorCheck",
    "ModelMessage",
    "StoreCheck",
    "StorePlugin",
    "ToolEvent",
    "store_plugin_at",
]
