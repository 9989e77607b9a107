"""Read, write, copy, pack and unpack files on this machine."""
