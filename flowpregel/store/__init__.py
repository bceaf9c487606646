"""The long-term key-value store, for what outlives threads: in this process, or in
LMDB.
"""
