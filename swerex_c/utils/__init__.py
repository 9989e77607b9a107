"""Small things that runtimes and deployments share."""
