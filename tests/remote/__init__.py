"""The server, its clients, and the protocol between them. Real processes on both ends."""
