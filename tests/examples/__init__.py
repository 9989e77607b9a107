"""The batch example."""
