"""The one room in which LMDB is handled: files, locks, transactions, sealed records.

Savers, stores and caches keep their records through it and never meet LMDB itself.
The order to read it in: `files`, `locks`, `environment`, `records`, `options`, `store`.
"""
