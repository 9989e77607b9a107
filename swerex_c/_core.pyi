"""The engine in C. Private to the package: programs use `swerex_c.runtime.local`.

Times are in seconds, sizes and positions in bytes unless a comment says otherwise. Nothing here is tied to an event
loop: `Completions.take` returns the objects (`future`, `news`) that were given for operations that have ended.
"""

from collections.abc import Sequence, Set
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, final

from pydantic import BaseModel
from typing_extensions import Buffer

_End: TypeAlias = Literal[
    "none", "done", "matched", "timeout", "quiet", "died", "lost", "closed", "cancelled", "memory", "costly", "system"
]

# Patterns to search the output for. (news,): the caller searches, with Operation.unsearched whenever
# Completions.take returns `news`.
_Patterns: TypeAlias = "Matcher | tuple[object] | None"

# ---- the module

msgpack_version: str  # of the msgpack-c that is loaded, such as "4.0.0"

_Model = TypeVar("_Model", bound=BaseModel)

# Makes a model without validation; the dict becomes the model's own. names: the fields that count as set.
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
    doubtful: bool  # elsewhere: the shell has read the command that runs, and its end was not heard
    hides: bool  # the command that runs may have hidden the prompts, and does not make the shell itself read
    commands: int
    commenced: int  # when the last command was typed: nanoseconds of the monotonic clock
    late: int  # bytes of output that came while no operation waited for them
    pid: int

@final
class Operation:
    # Deleting it before it has ended cancels it. Until then only `done` and `held` can be read; the other attributes
    # raise RuntimeError.
    def release(self, checked: int, /) -> None: ...  # lets a held command begin; checked as in run()
    def cancel(self) -> None: ...  # ends it as "cancelled"; a command that it started goes on
    def set_future(self, future: object, /) -> None: ...  # until it has ended, by the thread that takes from the queue
    def take(self) -> bytes: ...  # raw output not taken yet, at most 256 KiB; b"" when there is none now
    # For a caller that searches the output itself: the bytes it has not taken yet, and before them their offset, which
    # is 0 again when the search begins anew.
    def unsearched(self) -> tuple[int, bytes]: ...
    def found(self, hit: tuple[int, int, int] | None, /) -> None: ...  # (index, start, end); None: it takes too long
    @property
    def done(self) -> bool: ...
    @property
    def held(self) -> bool: ...  # waits for release(), at its place in the queue, because bash must check the command
    @property
    def end(self) -> _End: ...
    @property
    def code(self) -> int: ...  # the exit code (128 + n for signal n), when end is "done" or "died"; -1: unknown
    @property
    def signal(self) -> int: ...  # the signal that ended the shell, when end is "died"; 0: it exited
    @property
    def output(self) -> str: ...  # made anew at each access
    @property
    def dropped(self) -> int: ...  # bytes missing in the middle of output
    @property
    def hit(self) -> int: ...  # number of the pattern, when end is "matched"
    @property
    def typed(self) -> bool: ...  # whether the command was typed to the shell
    @property
    def begun(self) -> bool: ...  # whether the shell has begun to run the command, or the script of start()
    @property
    def ended(self) -> bool: ...  # after a match: whether the command has ended, so that it has a code
    @property
    def error(self) -> str: ...  # the reason, when end is "system"; when it is "died" or "lost": the reason, if known
    @property
    def errno(self) -> int: ...  # of the system call that failed then; 0: none did

@final
class Session:
    # OSError names the call that failed. Deleting the object ends the shell and everything it started.
    def __new__(
        cls,
        program: bytes,  # path of bash, or of the client
        environment: Sequence[bytes],  # b"NAME=value", all of it
        directory: bytes | None,
        rows: int,
        columns: int,
        output_limit: int,  # bytes kept of each operation's output, at least 2
        argv: Sequence[bytes] | None = None,  # a client: carries the terminal of a bash elsewhere; None: bash, here
    ) -> Session: ...
    # The script is whole lines; the timeout counts from the shell's first prompt on. Call it once, first.
    # `patience`: seconds for that prompt, at most 60 (None).
    def start(
        self,
        script: bytes,
        timeout: float | None,
        queue: Completions | None,
        future: object,
        patience: float | None = None,
        /,
    ) -> Operation: ...
    # With `checked` -1 the operation may be `held`: then ask bash, and release it.
    def run(
        self,
        command: str,
        checked: int,  # 1: bash -n accepts it without a warning; 0: it does not; -1: bash was not asked
        timeout: float | None,
        quiet: float | None,  # seconds without any output
        matcher: _Patterns,
        queue: Completions | None,
        future: object,
        news: object,  # put into the queue when there is output to take; None: output is not taken
        inline_wait: int,  # microseconds that this call itself waits for the end
        wake_fd: int = -1,  # a descriptor that ends this wait when it is readable
        grace: int = 0,  # milliseconds for the command to end after a match, so that it has an exit code
        ahead: bool = False,  # runs before the command that is first and held, to ask the shell about that one
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
    # SIGINT up to `tries` times, `step` seconds apart; then the foreground is killed (elsewhere it ends as "timeout").
    # silent, for a shell elsewhere: types nothing, and ends with the command or by cancel(); the caller signals.
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
    def type(self, data: bytes, /) -> bool: ...  # types raw bytes to the command that runs; False: none runs
    def resync(self, commands: int, /) -> bool: ...  # a shell elsewhere was seen at its prompt; False: no doubt
    def facts(self) -> _Facts: ...

# ---- single programs

@final
class Process:
    # OSError names execve or chdir when the program cannot be executed. Deleting the object before the end kills it.
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
    def mark(self) -> int: ...  # of all processes that it starts; valid after its end; 0: none

# Marks are passed as array("Q", marks).tobytes().
# Kills every process that carries one of the marks. Returns how many lived, those included that are not gone yet: call
# it until it returns 0. -1: there is no /proc.
def kill_marked(marks: bytes, /) -> int: ...
def living_marks(marks: bytes, /) -> bytes: ...  # 1 for each mark that a living process carries, 0 for the others

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
    # that are not str or come twice, str that is not UTF-8, and a payload that is not one value; each
    # call after one raises it again. Not for two threads at once: RuntimeError.
    def feed(self, data: Buffer, /) -> list[Any]: ...  # the values of the frames that are complete now
