"""Readers of runs, for a watcher: they import and run nothing of the user's."""
