"""The engine, as the extension gives it to the package. Not for use from outside: `swerex_c.runtime.local` is.

Times are in seconds, sizes and positions in bytes unless a comment says otherwise. Nothing here is tied to an event
loop: what ends is handed, as the object that was given for it (`future`, `news`), to whoever calls `Completions.take`.
"""

from collections.abc import Sequence, Set
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, final

from pydantic import BaseModel
from typing_extensions import Buffer

_End: TypeAlias = Literal[
    "none", "done", "matched", "timeout", "quiet", "died", "lost", "closed", "cancelled", "memory", "costly", "system"
]

# How the output is searched: (news,): by the caller, with Operation.unsearched when Completions.take returns `news`.
_Patterns: TypeAlias = "Matcher | tuple[object] | None"

# ---- the module

msgpack_version: str  # of the msgpack-c that is loaded, such as "4.0.0"

_Model = TypeVar("_Model", bound=BaseModel)

# Without looking at the values, whose dict becomes the model's own. names: of the fields that count as set.
def model(cls: type[_Model], values: dict[str, Any], names: Set[str], /) -> _Model: ...
def node_count() -> int: ...  # sessions and processes that the reactor watches in this process
def _shutdown() -> None: ...  # ends the reactor, its sessions and its processes; registered with atexit

# ---- waiting

@final
class Completions:
    def __new__(cls) -> Completions: ...  # OSError when there are no descriptors left
    def fileno(self) -> int: ...  # readable while something waits to be taken; valid as long as the object
    def take(self) -> list[Any]: ...  # the `future` and `news` objects, oldest first

# ---- sessions

class _Facts(TypedDict):
    kernel_proof: bool  # the kernel confirms each completion
    idle: bool
    dead: bool
    doubtful: bool  # behind a carrier: the shell has read the command that runs, and its end was not heard
    hides: bool  # what runs may have hidden the prompts, and has the shell itself read nothing
    commands: int
    commenced: int  # when the last command was typed: nanoseconds of the monotonic clock
    late: int  # bytes that came while nobody asked for output
    pid: int

@final
class Operation:
    # Throwing it away before it ended cancels it. Of its attributes only `done` and `held` can be had before it has
    # ended; the others raise RuntimeError.
    def wait(self, seconds: float | None, /) -> bool: ...  # blocks; False: it has not ended in that time
    def release(self, checked: int, /) -> None: ...  # lets a held command begin; checked as in run()
    def cancel(self) -> None: ...  # ends it as "cancelled"; a command that it started goes on
    def set_future(self, future: object, /) -> None: ...  # until it has ended, by the thread that takes from the queue
    def take(self) -> bytes: ...  # raw output not taken yet, at most 256 KiB; b"" when there is none now
    # For a caller that searches the output itself: what it has not taken yet, behind its offset in all of that, which
    # is 0 again when the search begins anew.
    def unsearched(self) -> tuple[int, bytes]: ...
    def found(self, hit: tuple[int, int, int] | None, /) -> None: ...  # (index, start, end); None: it takes too long
    @property
    def done(self) -> bool: ...
    @property
    def held(self) -> bool: ...  # keeps its place in the queue until release(): bash has to be asked about the command
    @property
    def end(self) -> _End: ...
    @property
    def code(self) -> int: ...  # the exit code (128 + n for signal n), when end is "done" or "died"; -1: unknown
    @property
    def signal(self) -> int: ...  # what ended the shell, when end is "died"; 0: it exited by itself
    @property
    def output(self) -> str: ...  # made anew at each access
    @property
    def dropped(self) -> int: ...  # bytes missing in the middle of output
    @property
    def hit(self) -> int: ...  # number of the pattern, when end is "matched"
    @property
    def typed(self) -> bool: ...  # whether the shell was given the command at all
    @property
    def begun(self) -> bool: ...  # whether the shell has begun to run the command, or the script of start()
    @property
    def ended(self) -> bool: ...  # after a match: whether the command has ended, so that it has a code
    @property
    def error(self) -> str: ...  # what was wrong, when end is "system"; when it is "died" or "lost": why, if known
    @property
    def errno(self) -> int: ...  # the number of the error of the system call that failed then; 0: none did

@final
class Session:
    # OSError names the call that failed. Throwing the object away ends the shell and all it started.
    def __new__(
        cls,
        program: bytes,  # path of bash, or of the carrier
        environment: Sequence[bytes],  # b"NAME=value", all of it
        directory: bytes | None,
        rows: int,
        columns: int,
        output_limit: int,  # bytes kept of each operation's output, at least 2
        argv: Sequence[bytes] | None = None,  # a carrier: gives us the terminal of a bash elsewhere; None: bash, here
    ) -> Session: ...
    # The script is whole lines; the timeout counts from the shell's first prompt on. Call it once, first.
    # A carrier has `patience` seconds to show that prompt (None: the same timeout).
    def start(
        self,
        script: bytes,
        timeout: float | None,
        queue: Completions | None,
        future: object,
        patience: float | None = None,
        /,
    ) -> Operation: ...
    # With `checked` -1 the operation may be `held`: then bash has to be asked, and the operation released.
    def run(
        self,
        command: str,
        checked: int,  # 1: bash -n accepts it without a warning; 0: with a warning; -1: nobody asked
        timeout: float | None,
        quiet: float | None,  # seconds without any output
        matcher: _Patterns,
        queue: Completions | None,
        future: object,
        news: object,  # given to the queue when there is output, which is to be taken then; None: it is not taken
        direct: int,  # microseconds that this call itself waits for the end
        wake_fd: int = -1,  # to poll beside the terminal meanwhile: something to read from it ends that wait
        grace: int = 0,  # milliseconds for it to end after a match, so that it has an exit code
        ahead: bool = False,  # asks the shell about the command that is first and held: runs before that
        /,
    ) -> Operation: ...
    # Ends with a match, or when the shell is back at its prompt.
    def line(
        self,
        text: bytes,
        timeout: float | None,
        quiet: float | None,
        matcher: _Patterns,
        queue: Completions | None,
        future: object,
        news: object,
        /,
    ) -> Operation: ...
    # SIGINT up to `tries` times, `step` seconds apart; then the foreground is killed (a carrier: "timeout" is the end).
    # silent, for a carrier: types nothing, and ends with what runs, or when it is cancelled; the caller signals inside.
    def interrupt(
        self,
        step: float,
        tries: int,
        matcher: _Patterns,
        queue: Completions | None,
        future: object,
        silent: bool = False,
        /,
    ) -> Operation: ...
    def close(self, queue: Completions | None, future: object, /) -> Operation: ...
    def type(self, data: bytes, /) -> bool: ...  # to what runs, at once, as it is; False: nothing runs
    def resync(self, commands: int, /) -> bool: ...  # a shell elsewhere was seen at its prompt; False: that was known
    def attach(self, attached: bool, /) -> None: ...  # a person's terminal answers queries; lines may be typed ahead
    def resize(self, rows: int, columns: int, /) -> None: ...
    def facts(self) -> _Facts: ...

# ---- single programs

@final
class Process:
    # OSError names execve or chdir when the program cannot be executed. Throwing the object away before the end kills.
    def __new__(
        cls,
        file: bytes,  # path of the program
        argv: Sequence[bytes],
        environment: Sequence[bytes],  # b"NAME=value", all of it
        directory: bytes | None,
        input: bytes,
        merge: bool,  # stderr goes where stdout goes
        timeout: float | None,  # then it is killed with everything it started
        output_limit: int,  # bytes kept per stream
        queue: Completions | None,
        future: object,
    ) -> Process: ...
    def cancel(self) -> None: ...  # kills it with everything it started
    @property
    def done(self) -> bool: ...
    @property
    def end(self) -> Literal["done", "timeout", "cancelled", "memory", "lost"]: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def returncode(self) -> int | None: ...  # exit status, or minus the signal's number; None when end is "lost"
    @property
    def mark(self) -> int: ...  # by which all that it started is found, also after its end; 0: there is none

# Kills everything that carries one of the marks. How much lived, what is not gone yet included: ask again until it is
# 0.
# -1: there is no /proc.
def kill_marked(marks: Sequence[int], /) -> int: ...
def living_marks(marks: Sequence[int], /) -> list[int]: ...  # those that a living process carries

# ---- patterns

@final
class Matcher:
    # ValueError for what is no program. One stream at a time: RuntimeError when it is in use.
    def __new__(cls, program: bytes) -> Matcher: ...
    def feed(self, data: Buffer, /) -> tuple[int, int, int] | None: ...  # (index, start, end) in the stream
    def reset(self) -> None: ...

# ---- terminal output as plain text

@final
class Strip:  # removes control sequences; not for two threads at once
    def __new__(cls) -> Strip: ...
    def feed(self, data: bytes, /) -> bytes: ...  # less what may still become a sequence
    def finish(self) -> bytes: ...  # the end of the stream: what was held back

# ---- commands

# (verdict, SCAN_* flags)
def scan(command: str | bytes, /) -> tuple[Literal["empty", "complete", "unsure"], int]: ...
def quote(command: str | bytes, /) -> bytes: ...  # what is typed to eval it; ValueError for a NUL byte

SCAN_BACKSLASH_END: Final[int]
SCAN_EXEC: Final[int]
SCAN_PROMPT: Final[int]

# ---- frames: a length of 4 bytes, big-endian, and one msgpack value of that many bytes

class FrameError(ValueError): ...  # the message ends with the byte at fault, in the stream or in the payload

@final
class FrameEncoder:
    def __new__(
        cls,
        *,
        max_frame: int = 67108864,  # bytes of payload
        max_depth: int = 32,  # lists and dicts inside each other, at most 128
        max_items: int = 1000000,  # values, keys and containers of a frame
    ) -> FrameEncoder: ...
    # Takes None, bool, int in [-2**63, 2**64), float, str (surrogates too), bytes, bytearray and contiguous
    # memoryview (all three come back as bytes), list and tuple (as list), and dict with str keys; subclasses count as
    # their base. FrameError for other values and beyond a limit. May be called by several threads at once.
    def encode(self, value: object, /) -> bytes: ...  # its length included

@final
class FrameDecoder:
    def __new__(cls, *, max_frame: int = 67108864, max_depth: int = 32, max_items: int = 1000000) -> FrameDecoder: ...
    # Limits are asked before room is made: memory grows with the bytes that came. FrameError also for ext types, keys
    # that are not str or come twice, str that is not UTF-8, and a payload that is not one value; after one of feed()
    # each call of that raises it. Not for two threads at once: RuntimeError.
    def feed(self, data: Buffer, /) -> list[Any]: ...  # the values of the frames that are complete now
    def decode(self, frame: Buffer, /) -> Any: ...  # one frame, its length included; apart from the stream
