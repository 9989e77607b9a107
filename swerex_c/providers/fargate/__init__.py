"""Provider for tasks of AWS Fargate."""
