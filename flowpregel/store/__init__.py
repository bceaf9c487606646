"""The long-term key-value store, for data that outlives threads."""
