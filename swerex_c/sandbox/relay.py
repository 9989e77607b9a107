"""Client program of an `ApiBackend`: forward the streams of a remote program.

    python -I -S relay.py ADDRESS TOKEN t|p "NAMES OF VARIABLES" ARGV...

`t`: use the terminal that it is started on, in raw mode; `p`: use three pipes. It ends with the exit code of the
program, or with 255 and a sentence on standard error if that code is not known. It has few imports, because every
session starts it and waits for it. See `swerex_c.sandbox.api_backend`.
"""

import os
import select
import socket
import struct
import sys

HEAD = "<cI"
"""Format of a frame header: frame type, number of payload bytes."""

PIECE = 65536
"""Maximum number of stream bytes in one frame."""

WINDOW = 262144
"""Maximum number of input bytes sent but not yet acknowledged."""

UNKNOWN = 255
"""Exit code of the relay if the program's is not known."""


class Relay:
    """Forwarder between three descriptors and the socket.

    It never blocks on one of them alone.
    """

    def __init__(self, connection: socket.socket, terminal: bool) -> None:
        self.connection = connection
        self.terminal = terminal
        self.received = bytearray()
        self.sending = bytearray()
        self.outputs = {1: bytearray(), 2: bytearray()}
        self.allowed = WINDOW
        self.input_open = True
        self.code: int | None = None
        self.gone = False

    def run(self) -> int:
        for each in (0, 1, 2):
            os.set_blocking(each, False)
        self.connection.setblocking(False)
        while True:
            full = any(len(it) >= WINDOW for it in self.outputs.values())
            if self.code is not None or self.gone:
                full = True
                if not any(self.outputs.values()):
                    return UNKNOWN if self.code is None else self.code
            self._wait(full)

    def _wait(self, full: bool) -> None:
        watched = select.poll()
        ours = (0 if full else select.POLLIN) | (select.POLLOUT if self.sending else 0)
        if ours:
            watched.register(self.connection, ours)
        wanted: dict[int, int] = {}
        if self.input_open and self.allowed and len(self.sending) < PIECE:
            wanted[0] = select.POLLIN
        for each, data in self.outputs.items():
            if data:
                wanted[each] = select.POLLOUT
        for each, what in wanted.items():
            watched.register(each, what)
        for each, what in watched.poll():
            if each != self.connection.fileno():
                if each == 0:
                    self._read_input()
                else:
                    self._write_output(each)
                continue
            if what & select.POLLOUT:
                self._send()
            if what & ~select.POLLOUT:
                self._receive()

    def _read_input(self) -> None:
        try:
            data = os.read(0, min(PIECE, self.allowed))
        except BlockingIOError:
            return
        except OSError:  # the terminal was hung up
            data = b""
        if data:
            self.allowed -= len(data)
            self.sending += struct.pack(HEAD, b"I", len(data)) + data
            return
        self.input_open = False
        if self.terminal:
            raise SystemExit(UNKNOWN)  # the other end of the terminal is closed
        self.sending += struct.pack(HEAD, b"E", 0)

    def _write_output(self, each: int) -> None:
        data = self.outputs[each]
        try:
            del data[: os.write(each, bytes(data[:PIECE]))]
        except BlockingIOError:
            return
        except OSError:
            if self.terminal:
                raise SystemExit(UNKNOWN) from None
            data.clear()  # the reader is gone
            if each == 1:
                raise SystemExit(UNKNOWN) from None

    def _send(self) -> None:
        try:
            del self.sending[: self.connection.send(self.sending)]
        except BlockingIOError:
            return
        except OSError:
            self.sending.clear()  # frames that were already sent to us are still read

    def _receive(self) -> None:
        try:
            data = self.connection.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if self.code is None and not self.gone:
                self._fail(b"The connection to the process that reaches the sandbox broke")
            return
        self.received += data
        size = struct.calcsize(HEAD)
        while len(self.received) >= size:
            kind, length = struct.unpack_from(HEAD, self.received)
            if len(self.received) < size + length:
                return
            body = bytes(self.received[size : size + length])
            del self.received[: size + length]
            self._take(kind, body)

    def _take(self, kind: bytes, body: bytes) -> None:
        if kind == b"O":
            self.outputs[1] += body
        elif kind == b"R":
            self.outputs[2] += body
        elif kind == b"A":
            self.allowed += int(body)
        elif kind == b"X":
            code = int(body)
            if 0 <= code < 256:
                self.code = code
            else:  # the system would keep only the lowest 8 bits, which may mean success
                self._fail(b"The sandbox reports an exit code outside 0 to 255: " + body)
        elif kind == b"F":
            self._fail(body)

    def _fail(self, words: bytes) -> None:
        self.gone = True
        end = b"\r\n" if self.terminal else b"\n"
        self.outputs[2] += words + end


def make_raw() -> tuple[int, int]:
    """Put the terminal into raw mode, and return its rows and columns.

    In raw mode, bytes pass unchanged.
    """
    import fcntl
    import termios

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
    address, token, kind, names = sys.argv[1:5]
    size = make_raw() if kind == "t" else ("", "")
    variables = [f"{each}={os.environ[each]}" for each in names.split() if each in os.environ]
    words = (token, *map(str, size), str(len(variables)), *variables, *sys.argv[5:])
    head = os.fsencode("\0".join(words))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(f"\0{address}")
            connection.sendall(struct.pack(HEAD, b"H", len(head)) + head)
        except OSError as error:
            os.write(2, f"The process that reaches the sandbox is gone: {error.strerror}\n".encode())
            return UNKNOWN
        return Relay(connection, kind == "t").run()


if __name__ == "__main__":
    sys.exit(main())
