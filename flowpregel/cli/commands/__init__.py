"""One module for each command; the attribute ``command`` is it."""
