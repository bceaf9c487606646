"""Savers: keep checkpoints and pending writes."""
