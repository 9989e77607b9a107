"""Directory that `swerex-c run` adds to PYTHONPATH for its `sitecustomize`. Do not import this package."""
