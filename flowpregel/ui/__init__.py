"""The page: runs in a browser, live from a server or as one file.

::

    browser --> guard --> app --> pages --> StoreReader
                           |                (no user code is imported or unpickled)
                           +----> buttons --> the command, as a process of its own

The page's own files are in ``static``: plain ES modules, no build step, nothing from
elsewhere.
"""
