"""Client program of an `ApiBackend`: hand its terminal to the process that reaches the sandbox.

    python -I -S terminal_client.py ADDRESS TOKEN ARGV... "NAMES OF VARIABLES"

It ends with the exit code that this process sends, or with 255 and a sentence if that process ends first. It has few
imports, because every session starts it and waits for it. See `swerex_c.sandbox.api_backend`.
"""

import os
import socket
import sys
import termios
import tty

UNKNOWN = 255
"""Exit code if the program's is not known."""


def main() -> int:
    address, token, *argv, names = sys.argv[1:]
    tty.setraw(0, termios.TCSANOW)
    columns, rows = os.get_terminal_size(0)
    variables = [f"{each}={os.environ[each]}" for each in names.split() if each in os.environ]
    head = os.fsencode("\0".join((token, str(rows), str(columns), str(len(variables)), *variables, *argv)))
    code = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(f"\0{address}")
            socket.send_fds(connection, [len(head).to_bytes(4, "little")], [0])
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
