"""LangGraph's savers in flowpregel (`as_saver`), and ours in LangGraph (`.saver`).

Importing this package needs no LangGraph; its module `saver` does.
"""

from flowpregel.checkpoint.foreign import ForeignSaver, as_saver

__all__ = ["ForeignSaver", "as_saver"]
