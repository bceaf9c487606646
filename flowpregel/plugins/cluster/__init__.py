"""Executors on the clusters of Dask and Ray (the extras ``dask`` and ``ray``)."""
