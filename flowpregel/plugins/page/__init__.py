"""The page, which shows runs in a browser: live from a server, or as a single HTML
file.

::

    browser --> guard --> app --> pages --> StoreReader
                           |          (imports and unpickles nothing of the user's)
                           +----> buttons --> the command, as a process of its own

The files of the page are in ``static``: plain ES modules without a build step or
resources of other sites.
"""
