"""The pickling and digesting of the user's values.

``copies`` makes independent copies of values. ``by_value`` pickles objects that no name
refers to. ``crossing`` makes pickles that another process can load. ``process_bound``
is for objects that stay in their process, such as savers, and ``buffers`` keeps large
buffers outside of a pickle. ``digest`` makes digests of values, which ``gained_fields``
and ``moved_classes`` keep stable while classes change. ``culprits`` finds the part of a
value that cannot be pickled.
"""
