"""What each kind of runtime does alike: here, in a sandbox, behind a server."""
