"""What is asked of a runtime and what it answers, as pydantic models, and the base class of all runtimes.

Unknown fields of requests are ignored. Times are in seconds. The unions (`Action`, `CreateSessionRequest`, ...) are
for annotations; those that have one member can also be called, and make that member.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from swerex_c.runtime._base import AbstractRuntime

__all__ = [
    "AbstractRuntime",
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


class IsAliveResponse(BaseModel):
    """Whether the runtime answers; true or false in itself."""

    is_alive: bool

    message: str = ""
    """Why it does not."""

    def __bool__(self) -> bool:
        return self.is_alive


class CreateBashSessionRequest(BaseModel):
    """Start a bash that keeps its state from command to command."""

    startup_source: list[str] = []
    """Files that the session sources, in this order, after what an interactive bash reads by itself."""

    session: str = "default"
    """The name of the session, unique in its runtime."""

    session_type: Literal["bash"] = "bash"
    """Tells the kinds of sessions apart. Not to be changed."""

    startup_timeout: float = 1.0
    """How long reading the startup files may take, in seconds; a shell has 0.35 seconds more to come up, as in the
    original, which sleeps for that time before this one begins."""

    env: dict[str, str] | None = None
    """Variables to set or replace in the environment that the session inherits from the runtime's process."""

    cwd: str | None = None
    """The directory in which the session starts; None is that of the runtime's process."""

    rows: int = Field(default=24, ge=1, le=65535)
    """Height of the terminal."""

    columns: int = Field(default=80, ge=1, le=65535)
    """Width of the terminal."""


CreateSessionRequest = Annotated[CreateBashSessionRequest, Field(discriminator="session_type")]
"""Any request for a session."""


class CreateBashSessionResponse(BaseModel):
    """A bash session has started."""

    output: str = ""
    """What the startup files printed."""

    session_type: Literal["bash"] = "bash"
    """Tells the kinds of sessions apart. Not to be changed."""


CreateSessionResponse = Annotated[CreateBashSessionResponse, Field(discriminator="session_type")]
"""Any answer to a request for a session."""


class BashAction(BaseModel):
    """Run a command in a bash session, or send a line to a program that runs there."""

    command: str
    """What to run, of any length and any number of lines. It is one unit: no part of it is read by another part."""

    session: str = "default"
    """The session to run it in."""

    timeout: float | None = None
    """How long it may run; None is for ever."""

    is_interactive_command: bool = False
    """The command starts or feeds a program that stays in the foreground (gdb, a Python prompt): it is finished when
    one of `expect` appears."""

    is_interactive_quit: bool = False
    """The command makes such a program end: no exit code is looked for."""

    check: Literal["silent", "raise", "ignore"] = "raise"
    """What to do with the exit code: "silent" returns it, "raise" also raises `NonZeroExitCodeError` unless it is 0,
    "ignore" leaves it None."""

    error_msg: str = ""
    """Begins the message of the `NonZeroExitCodeError`."""

    expect: list[str] = Field(default_factory=list)  # pydantic would copy a default, for half of what an action costs
    """Regular expressions; the first that matches the output finishes the action, as the shell's prompt does."""

    action_type: Literal["bash"] = "bash"
    """Tells the kinds of actions apart. Not to be changed."""

    no_output_timeout: float | None = None
    """How long it may print nothing; None is for ever."""


class BashInterruptAction(BaseModel):
    """Interrupt what runs in a bash session. It does not wait for the running command's turn to end."""

    session: str = "default"
    """The session to interrupt."""

    timeout: float = 0.2
    """How long to wait after each attempt."""

    n_retry: int = 3
    """How often to try."""

    expect: list[str] = []
    """Regular expressions that show success, besides the shell's prompt."""

    action_type: Literal["bash_interrupt"] = "bash_interrupt"
    """Tells the kinds of actions apart. Not to be changed."""


Action = Annotated[BashAction | BashInterruptAction, Field(discriminator="action_type")]
"""Anything that can be done in a session."""


class BashObservation(BaseModel):
    """What came of an action."""

    output: str = ""
    """What was printed, standard output and error as they came. Bytes that are no UTF-8 appear as `\\xNN`."""

    exit_code: int | None = None
    """The exit code, or None if there is none (yet) or it was not asked for."""

    failure_reason: str = ""
    """What went wrong when there is an observation all the same, for instance that the command ended the shell."""

    expect_string: str = ""
    """Which of the expected strings finished the action; a constant of the session if the shell's prompt did."""

    session_type: Literal["bash"] = "bash"
    """Tells the kinds of sessions apart. Not to be changed."""

    output_dropped: int = 0
    """How many bytes are missing in the middle of `output`, because there were more than the runtime keeps."""


Observation = Annotated[BashObservation, Field(discriminator="session_type")]
"""Anything that can come of an action."""


class CloseBashSessionRequest(BaseModel):
    """End a bash session."""

    session: str = "default"
    """The session to end."""

    session_type: Literal["bash"] = "bash"
    """Tells the kinds of sessions apart. Not to be changed."""


CloseSessionRequest = Annotated[CloseBashSessionRequest, Field(discriminator="session_type")]
"""Any request to end a session."""


class CloseBashSessionResponse(BaseModel):
    """A bash session has ended."""

    session_type: Literal["bash"] = "bash"
    """Tells the kinds of sessions apart. Not to be changed."""


CloseSessionResponse = Annotated[CloseBashSessionResponse, Field(discriminator="session_type")]
"""Any answer to a request to end a session."""


class Command(BaseModel):
    """Run a command outside of all sessions. The fields mean what they mean for `subprocess.run`."""

    command: str | list[str]
    """The program and its arguments; with `shell=True`, a text for the shell."""

    timeout: float | None = None
    """How long it may run; None is for ever."""

    shell: bool = False
    """Whether `command` is for the shell."""

    check: bool = False
    """Whether an exit code other than 0 raises `NonZeroExitCodeError`."""

    error_msg: str = ""
    """Begins the message of the `NonZeroExitCodeError`."""

    env: dict[str, str] | None = None
    """The whole environment of the command; None is that of the runtime's process."""

    cwd: str | None = None
    """The directory in which it runs; None is that of the runtime's process."""

    merge_output_streams: bool = False
    """Whether standard error goes into `stdout`, in the order in which it was printed."""


class CommandResponse(BaseModel):
    """What came of a command."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None


class ReadFileRequest(BaseModel):
    """Read a text file."""

    path: str
    """The file; relative to the runtime's process."""

    encoding: str | None = None
    """As for `open`; None is the locale's."""

    errors: str | None = None
    """As for `open`; None is "strict"."""


class ReadFileResponse(BaseModel):
    """A file's text."""

    content: str = ""
    """The text, with every line ending as a bare newline."""


class WriteFileRequest(BaseModel):
    """Write a text file."""

    content: str
    """Its whole new text."""

    path: str
    """The file; relative to the runtime's process."""


class WriteFileResponse(BaseModel):
    """The file is written."""


class UploadRequest(BaseModel):
    """Copy a file or a directory."""

    source_path: str
    """Where it is, on the caller's machine."""

    target_path: str
    """Where its copy is to be, on the runtime's."""


class UploadResponse(BaseModel):
    """The copy is made."""


class CloseResponse(BaseModel):
    """The runtime is closed."""


class _ExceptionTransfer(BaseModel):
    """An exception on its way from a server to its client."""

    message: str = ""
    class_path: str = ""
    traceback: str = ""

    extra_info: dict[str, Any] = {}
