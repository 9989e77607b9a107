"""Client program of an `ApiBackend`: hand its terminal to the process that reaches the sandbox.

    python -I -S terminal_client.py ADDRESS TOKEN ARGV... "NAMES OF VARIABLES"

It ends with the exit code that this process sends, or with 255 and a sentence if that process ends first. It has few
imports, because every session starts it and waits for it. See `swerex_c.sandbox.api_backend`.
"""

import fcntl
import os
import socket
import struct
import sys
import termios

SIZE = "<I"
"""Format of the number of bytes that follow."""

UNKNOWN = 255
"""Exit code if the program's is not known."""


def make_raw() -> tuple[int, int]:
    """Put the terminal into raw mode, in which bytes pass unchanged, and return its rows and columns."""
    mode = termios.tcgetattr(0)
    mode[0] = 0  # no input processing
    mode[1] &= ~termios.OPOST
    mode[2] = (mode[2] & ~(termios.CSIZE | termios.PARENB)) | termios.CS8
    mode[3] = 0
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    termios.tcsetattr(0, termios.TCSANOW, mode)
    rows, columns, _, _ = struct.unpack("4H", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
    return rows, columns


def main() -> int:
    address, token, *argv, names = sys.argv[1:]
    variables = [f"{each}={os.environ[each]}" for each in names.split() if each in os.environ]
    head = os.fsencode("\0".join((token, *map(str, make_raw()), str(len(variables)), *variables, *argv)))
    code = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(f"\0{address}")
            socket.send_fds(connection, [struct.pack(SIZE, len(head))], [0])
            connection.sendall(head)
            code = connection.recv(1)
    except OSError:
        pass
    if code:
        return code[0]
    os.set_blocking(0, True)
    os.write(0, b"The process that reaches the sandbox is gone\r\n")
    return UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
