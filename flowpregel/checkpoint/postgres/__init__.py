"""The durable saver for many machines: checkpoints and pending writes in PostgreSQL."""

from flowpregel.checkpoint.postgres.saver import PostgresSaver

__all__ = ["PostgresSaver"]
