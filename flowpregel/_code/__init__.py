"""Digests of the meaning of code, which survive each edit that changes no result."""
