"""Pools of environments."""
