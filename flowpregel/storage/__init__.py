"""Sealed records on disk and in this process: the room under savers, stores and caches.

`storage.lmdb` is the only room that knows LMDB. The order to read them in: `records`,
`options`, `locks`, then `lmdb.files`, `lmdb.environment` and `lmdb.store`; `in_memory`
keeps the same records in this process.
"""
