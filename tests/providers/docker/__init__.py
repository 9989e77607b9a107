"""Docker and podman, on real engines."""
