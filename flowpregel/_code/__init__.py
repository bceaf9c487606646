"""Digests of the meaning of code. An edit that changes no result, such as a new
comment, does not change the digest.
"""
