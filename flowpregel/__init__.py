"""Durable, parallel workflows from plain functions: no server, one folder on disk."""

__version__ = "0.1.0"
