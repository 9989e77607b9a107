"""Pydantic models of a runtime's requests and responses.

Unknown fields of requests are ignored, with a warning if the name is nearly that of a field. Times are in seconds. The
unions (`Action`, `CreateSessionRequest`, ...) are for annotations; calling a union with a single member constructs that
member.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

__all__ = [
    "Action",
    "BashAction",
    "BashInterruptAction",
    "BashObservation",
    "CloseBashSessionRequest",
    "CloseBashSessionResponse",
    "CloseResponse",
    "CloseSessionRequest",
    "CloseSessionResponse",
    "Command",
    "CommandResponse",
    "CreateBashSessionRequest",
    "CreateBashSessionResponse",
    "CreateSessionRequest",
    "CreateSessionResponse",
    "IsAliveResponse",
    "Observation",
    "ReadFileRequest",
    "ReadFileResponse",
    "UploadRequest",
    "UploadResponse",
    "WriteFileRequest",
    "WriteFileResponse",
]

OUTPUT_LIMIT = 256 * 1024 * 1024
"""Default limit in bytes on the output that a runtime keeps of one command."""

STARTUP_SECONDS = 10.0
"""Seconds for reading the startup files of a session if the request does not set `startup_timeout`. The default in the
model is SWE-ReX's 1 second, which is too short for startup files such as those of conda on a busy machine."""

READ_LIMIT = 1 << 30
"""Default limit in bytes on a file that `read_file` reads: as many as a client accepts in one response. Reading needs
twice the size of the text in memory for Latin letters, and up to five times for other text."""


class _Request(BaseModel):
    """Base class of requests, whose unknown fields SWE-ReX ignores."""

    _names: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls._names = frozenset(cls.model_fields)

    def __init__(self, /, **fields: Any) -> None:
        """Validate the fields, and warn of a misspelt one. Validation of data does not pass here: only a call does."""
        __tracebackhide__ = True
        if not fields.keys() <= self._names:
            _warn_of_misspelt(type(self), fields)
        self.__pydantic_validator__.validate_python(fields, self_instance=self)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def _warn_of_misspelt(model: type[BaseModel], fields: dict[str, Any]) -> None:
    import difflib
    import warnings

    for name in fields.keys() - model.model_fields.keys():
        for near in difflib.get_close_matches(name, model.model_fields, 1, 0.8):
            warnings.warn(f"{model.__name__} has no field {name!r}, which is ignored: use {near!r}", stacklevel=3)


class IsAliveResponse(BaseModel):
    """Whether the runtime responds; its truth value is `is_alive`."""

    is_alive: bool
    """True if the runtime responds."""

    message: str = ""
    """Reason why the runtime does not respond."""

    def __bool__(self) -> bool:
        return self.is_alive


class CreateBashSessionRequest(_Request):
    """Request to start a bash session, which keeps its state between commands."""

    startup_source: list[str] = []
    """Files that the session sources, in this order, after the files that an interactive bash reads by itself. A
    leading `~`, and `$NAME`, stand for what they do in a shell."""

    session: str = "default"
    """Name of the session, unique in its runtime."""

    session_type: Literal["bash"] = "bash"
    """Discriminator of the session type. Do not change it."""

    startup_timeout: float = 1.0
    """Seconds for reading the startup files. The shell has 0.35 seconds more to start, as in SWE-ReX, which sleeps for
    that time before this timeout begins. A request that does not set this field has 10 seconds."""

    env: dict[str, str] | None = None
    """Variables to set or replace in the environment that the session inherits from the runtime's process."""

    cwd: str | None = None
    """Directory in which the session starts; None means the working directory of the runtime's process."""

    rows: int = Field(default=24, ge=1, le=65535)
    """Height of the terminal in lines."""

    columns: int = Field(default=80, ge=1, le=65535)
    """Width of the terminal in characters."""


CreateSessionRequest = Annotated[CreateBashSessionRequest, Field(discriminator="session_type")]
"""Union of all requests for a session."""


def startup_seconds(request: CreateBashSessionRequest) -> float:
    """Return the seconds for reading the startup files: `startup_timeout` if it is set, else `STARTUP_SECONDS`."""
    return request.startup_timeout if "startup_timeout" in request.model_fields_set else STARTUP_SECONDS


class CreateBashSessionResponse(BaseModel):
    """Response after a bash session has started."""

    output: str = ""
    """Output of the startup files."""

    session_type: Literal["bash"] = "bash"
    """Discriminator of the session type. Do not change it."""


CreateSessionResponse = Annotated[CreateBashSessionResponse, Field(discriminator="session_type")]
"""Union of all responses to a request for a session."""


class BashAction(_Request):
    """Request to run a command in a bash session, or to send a line to a program that runs there."""

    command: str
    """Command text of any length and number of lines. It is one unit: no part of it is input of another part."""

    session: str = "default"
    """Session in which to run the command."""

    timeout: float | None = None
    """Seconds that the command may run; None means no limit."""

    is_interactive_command: bool = False
    """True if the command starts or feeds a program that stays in the foreground (gdb, a Python prompt). The action is
    finished when one of `expect` appears."""

    is_interactive_quit: bool = False
    """True if the command ends such a program. The exit code is not determined."""

    check: Literal["silent", "raise", "ignore"] = "raise"
    """Handling of the exit code: "silent" returns it, "raise" also raises `NonZeroExitCodeError` unless it is 0,
    "ignore" leaves it None."""

    error_msg: str = ""
    """Beginning of the message of the `NonZeroExitCodeError`."""

    expect: list[str] = Field(default_factory=list)  # copying a plain default would be half of an action's cost
    """Regular expressions. The first that matches the output finishes the action, as the shell's prompt does. The
    observation's output ends where the match begins; it has an exit code if the command ends shortly afterwards. What
    a program prints behind the match begins the output of the next line that is sent to it, and is not searched."""

    action_type: Literal["bash"] = "bash"
    """Discriminator of the action type. Do not change it."""

    no_output_timeout: float | None = None
    """Seconds that the command may run without output; None means no limit."""


class BashInterruptAction(_Request):
    """Request to interrupt the running command of a bash session, without queuing behind it."""

    session: str = "default"
    """Session to interrupt."""

    timeout: float = 0.2
    """Seconds to wait after each attempt. The next one, or the kill, comes 0.2 seconds later, as in SWE-ReX."""

    n_retry: int = 3
    """Number of attempts."""

    expect: list[str] = []
    """Regular expressions that indicate success, in addition to the shell's prompt."""

    action_type: Literal["bash_interrupt"] = "bash_interrupt"
    """Discriminator of the action type. Do not change it."""


def attempt_seconds(request: BashInterruptAction) -> float:
    """Return the seconds from one attempt of an interrupt to the next one."""
    return min(request.timeout, 3600.0) + 0.2


Action = Annotated[BashAction | BashInterruptAction, Field(discriminator="action_type")]
"""Union of all actions in a session."""


class BashObservation(BaseModel):
    """Result of an action."""

    output: str = ""
    """Standard output and standard error, interleaved as they arrived. Bytes that are not UTF-8 appear as `\\xNN`."""

    exit_code: int | None = None
    """Exit code; None if it is unknown or was not requested. Interactive actions and interrupts always have 0."""

    failure_reason: str = ""
    """Reason of a failure that does not raise an exception, for example that the command ended the shell."""

    expect_string: str = ""
    """Expected string that finished the action; a constant of the session if the shell's prompt finished it."""

    session_type: Literal["bash"] = "bash"
    """Discriminator of the session type. Do not change it."""

    output_dropped: int = 0
    """Number of bytes missing in the middle of `output`, because it exceeded the runtime's limit."""


Observation = Annotated[BashObservation, Field(discriminator="session_type")]
"""Union of all results of an action."""


class CloseBashSessionRequest(_Request):
    """Request to end a bash session."""

    session: str = "default"
    """Session to end."""

    session_type: Literal["bash"] = "bash"
    """Discriminator of the session type. Do not change it."""


CloseSessionRequest = Annotated[CloseBashSessionRequest, Field(discriminator="session_type")]
"""Union of all requests to end a session."""


class CloseBashSessionResponse(BaseModel):
    """Response after a bash session has ended."""

    session_type: Literal["bash"] = "bash"
    """Discriminator of the session type. Do not change it."""


CloseSessionResponse = Annotated[CloseBashSessionResponse, Field(discriminator="session_type")]
"""Union of all responses to a request to end a session."""


class Command(_Request):
    """Request to run a command outside of all sessions. The fields mean what they mean for `subprocess.run`."""

    command: str | list[str]
    """Program and its arguments; with `shell=True`, a command text for the shell."""

    timeout: float | None = None
    """Seconds that the command may run; None means no limit."""

    shell: bool = False
    """True if the shell runs `command`."""

    check: bool = False
    """True if an exit code other than 0 raises `NonZeroExitCodeError`."""

    error_msg: str = ""
    """Beginning of the message of the `NonZeroExitCodeError`."""

    env: dict[str, str] | None = None
    """Complete environment of the command; None means the environment of the runtime's process."""

    cwd: str | None = None
    """Directory in which the command runs; None means the working directory of the runtime's process."""

    merge_output_streams: bool = False
    """True if standard error is merged into `stdout`, in the order in which it was printed."""


class CommandResponse(BaseModel):
    """Result of a command."""

    stdout: str = ""
    """Standard output."""

    stderr: str = ""
    """Standard error."""

    exit_code: int | None = None
    """Exit code; minus the signal's number if a signal ended the program."""


class ReadFileRequest(_Request):
    """Request to read a text file."""

    path: str
    """Path of the file, relative to the working directory of the runtime's process."""

    encoding: str | None = None
    """Encoding, as for `open`; None means the locale's encoding."""

    errors: str | None = None
    """Error handler, as for `open`; None means "strict"."""


class ReadFileResponse(BaseModel):
    """Text of a file."""

    content: str = ""
    """Text with every line ending converted to a newline."""


class WriteFileRequest(_Request):
    """Request to write a text file."""

    content: str
    """Complete new text of the file."""

    path: str
    """Path of the file, relative to the working directory of the runtime's process."""


class WriteFileResponse(BaseModel):
    """Response after the file has been written."""


class UploadRequest(_Request):
    """Request to copy a file or a directory."""

    source_path: str
    """Path of the source on the caller's machine."""

    target_path: str
    """Path of the copy on the runtime's machine."""


class UploadResponse(BaseModel):
    """Response after the copy has been made."""


class CloseResponse(BaseModel):
    """Response after the runtime has been closed."""


class _ExceptionTransfer(BaseModel):
    """Exception that a server sends to its client."""

    message: str = ""
    class_path: str = ""
    traceback: str = ""

    extra_info: dict[str, Any] = {}
