"""Adapters: the same work by ours, by each peer, and by what the machine could do at
best.
"""
