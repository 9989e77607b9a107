"""A directory that `swerex-c run` puts on PYTHONPATH, for the `sitecustomize` in it. Not to be imported."""
