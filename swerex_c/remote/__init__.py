"""Client and server of a runtime, over frames or over HTTP/JSON.

    runtime/remote.py ─┬─ client/http.py ───────────────────── HTTP ─── server/app.py ───┬─ server/service.py ─ runtime
                       └─ client/frames.py ─ client/calls.py ─ frames ─ server/calls.py ─┘

`wire/protocol.py` defines the frames, `wire/exceptions.py` encodes exceptions, `wire/streams.py` sends data that does
not fit into one frame. `server/serve.py` runs a server. `runtime/remote.py` imports a client when it first needs one.
"""
