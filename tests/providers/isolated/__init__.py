"""Isolated views of this machine, by a real bubblewrap."""
