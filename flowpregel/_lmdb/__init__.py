"""The one room in which LMDB is handled: files, locks, transactions, sealed records.

Savers, stores and caches keep their records through it and never meet LMDB itself. The
order to read it in: `records`, `files`, `locks`, `environment`, `options`, `store`;
`in_memory` keeps the same records in this process.
"""
