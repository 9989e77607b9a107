"""One client with a bash behind it that takes one script, over three pipes.

    this process                      client                        the place
      stdin  --[ nonce, words, input ]--> docker exec -i ...  -->  bash -c LOADER: reads the words, then starts
      stdout <--[ nonce B ... nonce E0 ]--                    <--    a subshell that runs the script
      stderr <--[ nonce B ... nonce E0 ]--

The loader says hello when it can take a script. It frames what the script prints on both streams with records that
begin with a nonce of 128 bits, which came over standard input and is in the loader's memory only, so that no output
can look like them. The last one carries the exit code, and comes when the script itself has ended: children that it
left may hold the streams open and print on, which nobody sees any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from swerex_c.exec.scripts import BRAND

__all__ = ["KEPT", "MERGED", "NO_INPUT", "READ_WORDS", "Client", "Exchange", "Output", "Overdue", "packed"]

READ_WORDS = r"""
swx_read() {
  local LC_ALL=C TMOUT= size word
  IFS=' ' read -r -a swx_head || return
  for size in "${swx_head[@]:2}"; do
    word=
    if ((size)); then IFS= read -r -N "$size" word || return; fi
    swx_words+=("$word")
  done
}
swx_note() { printf '%sN%s;' "$swx_head" "$1"; }
"""
"""Defines `swx_read`, which fills the array `swx_words` from what `packed` made, byte for byte, and takes not one byte
more. The two words before the sizes are in `swx_head`: the nonce and a number.

`swx_note NUMBER` then tells a number to `Client.note` that nothing which the shell executes can tell."""

LOADER = (
    READ_WORDS
    + r"""
swx_posix=${POSIXLY_CORRECT+=$POSIXLY_CORRECT}
set +o posix
swx_nest=${FUNCNEST+=$FUNCNEST} swx_idle=${TMOUT+=$TMOUT}
unset -v FUNCNEST TMOUT
swx_say() {
  local quiet end=$((SECONDS + 60))
  until printf '%s%s;' "$swx_head" "$1"; do
    ((SECONDS < end)) || exit 1
    exec {quiet}<> <(:) && { read -r -t 0.01 -u "$quiet"; exec {quiet}>&-; }
  done
}
swx_cats=() swx_out= swx_err=
swx_copy() {
  local file
  case $swx_how in
  hidden) exec {file}<"$swx_cat" && exec -a swerex-c "/proc/self/fd/$file" ;;
  busybox) exec {file}<"$swx_cat" && exec -a busybox "/proc/self/fd/$file" cat ;;
  *) exec "$swx_cat" ;;
  esac
}
swx_pipes() {
  [[ -x $swx_cat ]] || return 0
  swx_out= swx_err=
  exec {swx_out}> >(unset -v SWEREX_C_MARK; exec {swx_two}>&-; swx_copy)
  swx_cats[0]=$!
  exec {swx_err}> >(unset -v SWEREX_C_MARK; exec {swx_out}>&- >&"$swx_two" {swx_two}>&-; swx_copy)
  swx_cats[1]=$!
  [[ $swx_out && $swx_err ]] || { swx_settle; swx_cat=; }
}
swx_piped() { ((${#swx_cats[@]} == 2)) && kill -0 "${swx_cats[0]}" && kill -0 "${swx_cats[1]}"; }
swx_settle() {
  local cat try
  ((${#swx_cats[@]})) || return 0
  [[ ! $swx_out ]] || exec {swx_out}>&-
  [[ ! $swx_err ]] || exec {swx_err}>&-
  swx_out= swx_err=
  kill -9 "${swx_cats[@]}"
  for cat in "${swx_cats[@]}"; do
    wait "$cat"
    for ((try = 0; try < 100000; try++)); do kill -0 "$cat" || continue 2; done
    exit 1
  done
  swx_cats=()
}
swx_env() {
  if [[ $swx_locale ]]; then LC_ALL=${swx_locale#=}; else unset -v LC_ALL; fi
  export -n SHELLOPTS BASHOPTS
  export SWEREX_C_MARK="$swx_mark"
  """
    + BRAND
    + r"""
  swx_branded=$?
}
swx_locale=${LC_ALL+=$LC_ALL}
LC_ALL=C
swx_directory=$PWD
hash cat 2>&-
for swx_cat in /bin/cat /usr/bin/cat "${BASH_CMDS[cat]-}"; do [[ ! -x $swx_cat ]] || break; done
exec {swx_two}>&2
[[ ! -w /dev/null ]] || exec 2>/dev/null
swx_how=hidden
[[ ! $swx_cat -ef ${swx_cat%/*}/busybox ]] || swx_how=busybox
[[ $swx_cat ]] && for swx_how in "$swx_how" plain none; do
  [[ $swx_how != none && $(swx_copy < <(printf swx)) != swx ]] || break
done
[[ $swx_how != none ]] || swx_cat=
swx_pipes
swx_head=$1
swx_say "H${BASH_VERSINFO[0]}.${BASH_VERSINFO[1]}.${swx_cat:+1}"
swx_say H >&"$swx_two"
while swx_words=(); swx_read; do
  swx_kind=${swx_head[1]}
  ((swx_kind & 1)) && ! swx_piped && swx_kind=$((swx_kind & 6))
  set -- "${swx_words[@]:2}"
  swx_mark=${swx_words[0]} swx_script=${swx_words[1]} swx_words=()
  swx_one=1 swx_both=$swx_two
  if ((swx_kind & 1)); then swx_one=$swx_out swx_both=$swx_err; fi
  ((swx_kind & 2)) && swx_both=$swx_one
  [[ . -ef $swx_directory ]] || cd -P "$swx_directory" # it may have been made anew
  swx_say B
  swx_say B >&"$swx_two"
  swx_jobs=
  trap 'trap - CHLD; swx_jobs=$(jobs "%?swx_script")' CHLD
  set -m
  if ((swx_kind & 4)); then
    (
      exec >&"$swx_one" 2>&"$swx_both" {swx_two}>&-
      [[ ! $swx_out ]] || exec {swx_out}>&- {swx_err}>&-
      swx_env 2>&-
      eval "$swx_script"
    ) </dev/null &
  else
    (
      exec >&"$swx_one" 2>&"$swx_both" {swx_two}>&-
      [[ ! $swx_out ]] || exec {swx_out}>&- {swx_err}>&-
      swx_env 2>&-
      eval "$swx_script"
    ) <&0 &
  fi
  set +m
  wait "$!"
  swx_code=$?
  trap - CHLD
  if ((swx_code > 128)) && [[ $swx_jobs && ! $swx_jobs =~ [^0-9]"$swx_code"[^0-9]|Running ]]; then
    swx_code=$((128 - swx_code))
  fi
  if ((swx_kind & 1)); then
    swx_say E$swx_code >&"$swx_out"
    swx_say E$swx_code >&"$swx_err"
    IFS= read -r swx_reply && [[ $swx_reply == "$swx_head" ]] || break
    swx_settle
    swx_say R
    swx_say R >&"$swx_two"
    swx_pipes
  else
    swx_say E$swx_code
    swx_say E$swx_code >&"$swx_two"
    break
  fi
done
swx_settle
"""
)
"""What runs in the place. `$1` is the word that its greeting begins with.

- A header line gives the nonce, the kind of the script (below), and the sizes of the words that follow.
- The script runs in a subshell with a process group of its own (`set -m`), so that `kill 0` does not reach the
  loader. Monitor mode is off again before the waiting, or a program that stops itself would be taken for ended.
- bash gives 137 both for `exit 137` and for SIGKILL; its table of jobs tells which, as long as nobody has waited. A
  signal's number is sent with a minus.
- The records are written until that succeeds, because the program may have left the pipe non-blocking. There is no
  sleep among the builtins, but a pipe that never has anything to read.
- Where the place has POSIXLY_CORRECT, a trapped SIGCHLD would end the waiting, and an old bash could not do the rest.
- FUNCNEST would forbid the functions of the scripts, and TMOUT end their reading: where the place has them, the scripts
  do not, and what the caller wants to be executed gets them back.
- SHELLOPTS and BASHOPTS would say what is set in the loader: where the place has them, they are not passed on.
- `swx_branded` is 0 if the mark is in the limits too, and so not needed in the environment to be found.

A script of the kind `KEPT` leaves the shell for another one. All that it executes has only a pair of fresh pipes, and
standard input from elsewhere; two `cat` copy from these pipes to the client's. When the script has ended, its last
record goes the same way, behind all that it printed. When this process has both, it says so; then the shell kills the
two, waits until they are gone, and says on the client's pipes that it is ready. Of the earlier script nobody can write
to these now: only the shell has them open, and had at any time but those two, who are gone. What came between the last
record and this one was printed by processes that the script had left, and is thrown away. They get SIGPIPE if they
print more, as those of a program whose caller has gone. The two are executed by a descriptor, under another name, so
that `pkill cat` and `killall cat` do not mean them. They carry no mark, or a script that ends all that has the
runtime's would lose its own answer; they end with the shell and with what holds their pipes. Where there is no `cat`,
each shell is used once, and so is one whose two were ended by somebody while it waited.
"""

KEPT, MERGED, NO_INPUT = 1, 2, 4
"""What kind of script it is: one that leaves the shell for another, and therefore reads nothing from the client's pipe
but what was announced to it and is not its children's; one whose standard error goes into its standard output; one
whose standard input is at its end."""

_RECORD = re.compile(rb"([HBENR])([-0-9.]*);")
_LONGEST_RECORD = 24
_CHUNK = 256 * 1024
_NOISE_KEPT = 8 * 1024

_SLICE = 0.25
"""Seconds after which a thread that waits for the pipes looks whether the client is still there."""

_SETTLE_SECONDS = 2.0
"""How long a shell may take until it is ready for another script. It kills two processes and starts two."""

_DRAIN = 0.5
"""Seconds that are left for what is under way when a client has ended."""


class Overdue(Exception):
    """What was waited for did not come in time."""


def packed(nonce: bytes, number: int, words: Sequence[bytes]) -> bytes:
    """What `READ_WORDS` reads: without NUL bytes, of any length."""
    return b"%s %d %s\n" % (nonce, number, b" ".join(b"%d" % len(word) for word in words)) + b"".join(words)


def loader(token: str) -> list[str]:
    """The program of the place that a client has to run: bash that reads no startup file and imports nothing.

    `-p` is what keeps BASH_ENV, SHELLOPTS and exported functions out of it; they go on to what it executes.
    """
    return ["bash", "--noprofile", "--norc", "-p", "-c", LOADER, "swerex", token]


class Output:
    """One of the two streams that come from the place: it takes the records out and hands the rest on."""

    def __init__(self, fd: int, key: bytes) -> None:
        self.fd = fd
        self.key = key
        self.records: dict[bytes, bytes] = {}
        self.noise = bytearray()  # what came before the script: a banner, a warning, the words of a failing client
        self.pieces: deque[bytes] = deque()
        self.sink: Callable[[bytes], None] = self.pieces.append
        self.closed = False  # no more bytes will come
        self._rest = b""

    @property
    def done(self) -> bool:
        """Whether all that the script printed is here."""
        return self.closed or b"E" in self.records

    def feed(self, data: bytes) -> None:
        data, self._rest = self._rest + data, b""
        while True:
            at = data.find(self.key)
            if at < 0:
                keep = self._split(data)
                self._emit(data[: len(data) - keep])
                self._rest = data[len(data) - keep :]
                return
            record = _RECORD.match(data, at + len(self.key))
            if record is None and len(data) - at - len(self.key) < _LONGEST_RECORD:
                self._emit(data[:at])
                self._rest = data[at:]
                return
            if record is None:  # nothing that the loader writes
                self._emit(data[: at + len(self.key)])
                data = data[at + len(self.key) :]
                continue
            self._emit(data[:at])
            self.records[record[1]] = record[2]
            data = data[record.end() :]

    def _split(self, data: bytes) -> int:
        """How many bytes at the end of the data may be the beginning of the key."""
        key = self.key
        for size in range(min(len(key) - 1, len(data)), 0, -1):
            if data.endswith(key[:size]):
                return size
        return 0

    def _emit(self, data: bytes) -> None:
        if not data or b"E" in self.records:
            return
        if b"B" in self.records:
            self.sink(data)
        else:
            self.noise += data
            del self.noise[:-_NOISE_KEPT]

    @property
    def settled(self) -> bool:
        """Whether the shell has said that nobody but itself can write to this stream."""
        return b"R" in self.records

    def next(self, key: bytes) -> Output:
        """The same stream for another script."""
        after = Output(self.fd, key)
        after.closed = self.closed
        return after

    def drain(self, sink: Callable[[bytes], None]) -> None:
        """From now on hand what comes to a function, and what has come already, instead of keeping it."""
        while self.pieces:
            sink(self.pieces.popleft())
        self.sink = sink

    def end(self) -> None:
        """The stream is at its end, whether or not the script is."""
        self.closed = True
        rest, self._rest = self._rest, b""
        self._emit(rest)


class Client:
    """A client process and the shell behind it. Its methods may be called from several threads."""

    def __init__(self, argv: Callable[[Sequence[str]], list[str]], environment: Mapping[str, str]) -> None:
        """Start it. Nothing is waited for.

        Args:
            argv: makes the command line of a client from that of the program to run in the place.
            environment: the whole environment of the client.

        Raises:
            OSError: if the client cannot be started.
        """
        token = secrets.token_hex(16)
        self.argv = argv(loader(token))
        """The client's command line."""
        self.process = subprocess.Popen(
            self.argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # the terminal's ^C is not for it
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._input = self.process.stdin.fileno()
        self.stdout = Output(self.process.stdout.fileno(), token.encode())
        self.stderr = Output(self.process.stderr.fileno(), token.encode())
        for fd in (self._input, self.stdout.fd, self.stderr.fd):
            os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # fewer turns for much output
            fcntl.fcntl(self.stdout.fd, fcntl.F_SETPIPE_SZ, _CHUNK)
        self.keeps = False
        """Whether the shell can take another script after one of the kind `KEPT`."""
        self._input_open = True
        self._open = True
        self._settling = False
        self._changed = threading.Condition()
        self._reader: int | None = None  # the thread that reads for all
        self._polling = 0  # threads that use the descriptors just now
        self._limit: float | None = None
        self._look = time.monotonic() + _SLICE

    # ---- the life of the client -----------------------------------------------------------------------------------

    def greet(self, deadline: float) -> tuple[int, int] | None:
        """Wait for the loader; the version of bash there, or None if the client has ended instead.

        Raises:
            Overdue: if neither comes before `deadline` (of the monotonic clock).
        """
        both = (self.stdout, self.stderr)
        self.pump(lambda: all(b"H" in output.records for output in both) or self.stdout.closed, deadline)
        version = self.stdout.records.get(b"H")
        if version is None:
            return None
        major, minor, keeps = version.split(b".")
        self.keeps = keeps == b"1"
        return int(major), int(minor)

    def usable(self) -> bool:
        """Whether a client that is to take a script can. One that was used before may need some milliseconds."""
        try:
            if self._settling:
                self.pump(lambda: self._settled() or self._ended(), time.monotonic() + _SETTLE_SECONDS)
                if not self._settled():
                    return False
                self._settling = False
            self.pump(self._ended, 0)
        except Overdue:
            return not self._settling and self.process.poll() is None
        except BrokenPipeError:
            pass
        return False

    def _settled(self) -> bool:
        return self.stdout.settled and self.stderr.settled

    def _ended(self) -> bool:
        return self.stdout.closed or self.stderr.closed

    def send(self, script: str, words: Sequence[bytes], kind: int, mark: str, deadline: float) -> Exchange | None:
        """Give it the script to run. None: the client has ended and cannot have begun with it.

        Args:
            words: what the script gets as `$1`, `$2`, ...
            kind: of `KEPT` (only if it `keeps`), `MERGED`, `NO_INPUT`.
            mark: what all that the script executes has in its environment.

        Raises:
            Overdue: if the place does not take it before `deadline`.
        """
        nonce = secrets.token_hex(16).encode()
        with self._changed:
            self.stdout = self.stdout.next(nonce)
            self.stderr = self.stderr.next(nonce)
        exchange = Exchange(self, self.stdout, self.stderr, nonce, bool(kind & KEPT))
        request = packed(nonce, kind, [os.fsencode(mark), os.fsencode(script), *words])
        try:
            self.write(request, self._ended, deadline)
        except BrokenPipeError:
            return None
        return exchange

    def recycle(self, exchange: Exchange) -> bool:
        """Make it ready for another script, now that this one has ended. False: it is of no more use."""
        if not exchange.kept or exchange.code is None or not exchange.done or self._ended():
            return False
        try:
            self.write(exchange.nonce + b"\n", self._ended, time.monotonic())
        except (BrokenPipeError, Overdue):
            return False
        self._settling = True
        return True

    def give_up(self, deadline: float) -> None:
        """From then on (of the monotonic clock) both streams count as ended, whatever holds them open."""
        with self._changed:
            self._limit = deadline if self._limit is None else min(deadline, self._limit)
            self._changed.notify_all()

    def close(self) -> None:
        """Close the pipes; who waits for something here gets an error soon. The process is not touched."""
        with self._changed:
            self._open = self._input_open = False
            self._changed.notify_all()
            if not self._polling:  # else the last of those does it, or a read might hit another file of this number
                self._close_pipes()

    def _close_pipes(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def words(self) -> str:
        """What the client said before its shell did, as one line."""
        said = bytes(self.stderr.noise) or bytes(self.stdout.noise)
        return " ".join(said.decode(errors="replace").split())

    # ---- what goes through it -------------------------------------------------------------------------------------

    def close_input(self) -> None:
        """What the shell or its script reads is at its end."""
        with self._changed:
            if not self._input_open:
                return
            self._input_open = False
            assert self.process.stdin is not None
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def write(
        self, data: bytes | bytearray | memoryview, over: Callable[[], bool], deadline: float | None = None
    ) -> None:
        """Write all of it, reading what comes meanwhile.

        Args:
            over: whether nobody will read it any more.

        Raises:
            BrokenPipeError: if nobody will.
            Overdue: if it is not taken before `deadline`.
        """
        left = memoryview(data).cast("B")

        def written() -> bool:
            nonlocal left
            if not self._input_open or not self._open or over():
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            with contextlib.suppress(BlockingIOError):
                while left:
                    left = left[os.write(self._input, left) :]
            return not left

        self.pump(written, deadline, writing=True)

    def read(self, output: Output, size: int, deadline: float | None = None) -> bytes:
        """At most `size` bytes of what a script printed on one of its streams; b"" at the end.

        Raises:
            Overdue: if none come before `deadline`.
        """
        if size == 0:
            return b""
        self.pump(lambda: bool(output.pieces) or output.done, deadline)
        with self._changed:
            if not output.pieces:
                return b""
            piece = output.pieces.popleft()
            if 0 < size < len(piece):
                output.pieces.appendleft(piece[size:])
                piece = piece[:size]
            return piece

    def pump(self, until: Callable[[], bool], deadline: float | None, *, writing: bool = False) -> None:
        """Read what comes until a condition holds. One thread at a time reads, for all that wait.

        Raises:
            Overdue: if it does not hold by `deadline` (of the monotonic clock; None: never). It is asked once at least.
            BrokenPipeError: if the client was closed.
        """
        reading = False
        try:
            while True:
                with self._changed:
                    self._look_at_the_end()
                    if until():
                        return
                    if not self._open:
                        raise BrokenPipeError(errno.EPIPE, "The client is closed")
                    now = time.monotonic()
                    if deadline is not None and deadline <= now and reading:
                        raise Overdue
                    seconds = _SLICE if deadline is None else max(0.0, min(_SLICE, deadline - now))
                    if not reading and self._reader is None:
                        self._reader, reading = threading.get_ident(), True
                    if not reading and not writing:
                        if seconds <= 0:
                            raise Overdue
                        self._changed.wait(seconds)
                        continue
                    self._polling += 1
                try:
                    self._poll(seconds, writing, reading)
                finally:
                    with self._changed:
                        self._polling -= 1
                        if not self._open and not self._polling:
                            self._close_pipes()
                        self._changed.notify_all()
        finally:
            if reading:
                with self._changed:
                    self._reader = None
                    self._changed.notify_all()

    def _look_at_the_end(self) -> None:
        """A client that has ended prints no more, though what it started may hold its pipes open."""
        now = time.monotonic()
        if self._limit is None and now >= self._look:
            self._look = now + _SLICE
            if self.process.poll() is not None:
                self._limit = now + _DRAIN
        if self._limit is not None and now >= self._limit:
            self.stdout.end()
            self.stderr.end()

    def _poll(self, seconds: float, writing: bool, reading: bool) -> None:
        poll = select.poll()
        outputs = [o for o in (self.stdout, self.stderr) if reading and not o.closed]
        for output in outputs:
            poll.register(output.fd, select.POLLIN)
        if writing:
            poll.register(self._input, select.POLLOUT)
        ready = dict(poll.poll(seconds * 1000))
        for output in outputs:
            if output.fd in ready:
                self._read(output)

    def _read(self, output: Output) -> None:
        try:
            data = os.read(output.fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        with self._changed:
            if data:
                output.feed(data)
            else:
                output.end()


class Exchange:
    """One script and what came of it. It stays as it is when its client goes on with another."""

    def __init__(self, client: Client, stdout: Output, stderr: Output, nonce: bytes, kept: bool) -> None:
        self.client = client
        self.stdout = stdout
        self.stderr = stderr
        self.nonce = nonce
        """What the records begin with; only for input that a shell reads before it executes anything else."""
        self.kept = kept
        """Whether the client can take another script afterwards."""

    @property
    def code(self) -> int | None:
        """The script's exit status, minus a signal's number if one ended it; None while it is not known."""
        value = self.stdout.records.get(b"E")
        return None if value is None else int(value)

    @property
    def note(self) -> int | None:
        """What the script told by `swx_note`."""
        value = self.stdout.records.get(b"N")
        return None if value is None else int(value)

    @property
    def began(self) -> bool:
        """Whether the loader is known to have begun with the script."""
        return b"B" in self.stdout.records or b"B" in self.stderr.records

    @property
    def done(self) -> bool:
        """Whether all that the script printed has come."""
        return self.stdout.done and self.stderr.done

    def write(self, data: bytes | bytearray | memoryview, deadline: float | None = None) -> None:
        """Write to the script's input; see `Client.write`."""
        self.client.write(data, lambda: self.done, deadline)

    def close_input(self) -> None:
        """The script's input is at its end. One of the kind `KEPT` has no other end than that of what it reads."""
        if not self.kept:
            self.client.close_input()

    def wait(self, deadline: float | None) -> None:
        """Wait until it is done; see `Client.pump`."""
        self.client.pump(lambda: self.done, deadline)
