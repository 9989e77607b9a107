"""A runtime across a wire: what servers and clients have in common, and each of them.

    HTTP/JSON    http_app ──┐                            ┌── json_client
                            ├── service ── the runtime   │
    frames       channel ───┘                            └── wire_client ── runtime.remote

`protocol` says what goes over the wire, `transfer` how exceptions do, `flow` how bytes that do not fit into one message
do. `serve` listens. Nothing here is imported by the package before a server or a client is made.
"""
