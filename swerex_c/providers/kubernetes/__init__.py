"""Deployments and backends for pods of a Kubernetes cluster."""
