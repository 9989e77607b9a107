"""Kubernetes, through an API server of the tests' own, and the real kubectl."""
