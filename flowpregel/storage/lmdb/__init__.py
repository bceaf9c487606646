"""The one room in which LMDB is handled: its folder, its map and its transactions."""
