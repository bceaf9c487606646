"""Results shared between runs: in this process, or in an LMDB folder."""
