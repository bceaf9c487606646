"""Plug-ins: parts of flowpregel that need an extra."""
