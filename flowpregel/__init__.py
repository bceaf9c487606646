"""Durable, parallel workflows from plain functions: no server, one folder on disk."""

__all__ = ["__version__"]

__version__ = "0.1.0"
