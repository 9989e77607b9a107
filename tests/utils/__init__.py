"""Finalizers, and text made printable."""
