"""Pickles of the user's values: copies, by value, between processes; and digests.

``copies`` keeps values that no later change reaches. ``by_value`` pickles what has no
name to refer to. ``crossing`` makes pickles that another process can load,
``process_bound`` has what stays in its process, ``buffers`` what stays outside of a
pickle. ``digest`` takes digests of values, which ``gained_fields`` and
``moved_classes`` keep stable while classes change. ``culprits`` finds the part of a
value that cannot be pickled.
"""
