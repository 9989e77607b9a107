"""Sandboxes that are this machine, reached by running programs or by calls."""
