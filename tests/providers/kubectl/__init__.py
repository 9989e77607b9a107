"""Clusters behind kubectl."""
