"""The durable saver: checkpoints and pending writes in one LMDB folder."""

from flowpregel._lmdb.codec import Codec, PythonCodec
from flowpregel._lmdb.options import StoreOptions
from flowpregel.checkpoint.lmdb.saver import LMDBSaver
from flowpregel.checkpoint.maintenance import Stats, ThreadInfo, Verification
from flowpregel.checkpoint.retention import Retention

__all__ = [
    "Codec",
    "LMDBSaver",
    "PythonCodec",
    "Retention",
    "Stats",
    "StoreOptions",
    "ThreadInfo",
    "Verification",
]
