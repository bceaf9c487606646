"""Savers, which store checkpoints and pending writes."""
