"""Protocol of client and server: frames, streams, exceptions, files and results."""
