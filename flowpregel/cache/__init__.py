"""Results that runs share: in this process, in LMDB or in PostgreSQL."""
