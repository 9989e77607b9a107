"""Ray, on a cluster of several nodes on this machine."""
