"""Every exception that this package raises by itself.

Files are the exception to the rule: reading, writing and uploading raise the `OSError` of the system
(`FileNotFoundError`, `PermissionError`, ...) with its `errno` and `filename`, and `UnicodeError` for text that does not
decode, because that is what callers catch.

Every class can be made from its message alone, survives pickling with all its attributes, and gives its message as
`str()`. `except SwerexException` catches them all.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AuthenticationError",
    "BashIncorrectSyntaxError",
    "CommandTimeoutError",
    "ConnectionLostError",
    "DeploymentNotStartedError",
    "DeploymentStartupError",
    "DockerPullError",
    "DummyOutputsExhaustedError",
    "EnvironmentLostError",
    "EnvironmentMemoryLimitError",
    "EnvironmentStartError",
    "EnvironmentTimeLimitError",
    "InvalidInputError",
    "MemoryLimitError",
    "NoExitCodeError",
    "NonZeroExitCodeError",
    "NotAvailableError",
    "NotSupportedError",
    "PlaceLostError",
    "PodStartupError",
    "PodStartupTimeoutError",
    "PoolClosedError",
    "PoolError",
    "PoolFullError",
    "PoolTimeoutError",
    "ProtocolError",
    "ResourceError",
    "ResultLostError",
    "RuntimeClosedError",
    "ServerLimitError",
    "ServerRestartedError",
    "SessionBusyError",
    "SessionDiedError",
    "SessionDoesNotExistError",
    "SessionExistsError",
    "SessionLostSyncError",
    "SessionNotInitializedError",
    "StartupTimeoutError",
    "SwapError",
    "SwerexException",
    "TimeLimitError",
    "UploadError",
]


class SwerexException(Exception):
    """The base of all exceptions of this package."""


# Sessions and commands


class SessionNotInitializedError(SwerexException, RuntimeError):
    """The session object was never started, or is closed."""


class NonZeroExitCodeError(SwerexException, RuntimeError):
    """A command with `check="raise"` (or `check=True`) ended with an exit code other than 0."""


class BashIncorrectSyntaxError(SwerexException, RuntimeError):
    """Bash does not accept the command's syntax. Nothing of the command was run.

    `extra_info` holds what bash said about it, as `bash_stdout` and `bash_stderr`.
    """

    def __init__(self, message: str, *, extra_info: dict[str, Any] | None = None):
        super().__init__(message)
        self.extra_info: dict[str, Any] = {} if extra_info is None else extra_info


class CommandTimeoutError(SwerexException, RuntimeError, TimeoutError):
    """A command did not end within its timeout, or printed nothing for its no-output timeout.

    In a session the command still runs until it is interrupted; one that was started by `execute` has been ended.
    `output` is what it printed until then (in `execute`: standard output, and standard error too if merged).
    """

    def __init__(self, *args: object, output: str = ""):
        super().__init__(*args)
        self.output = output


class NoExitCodeError(SwerexException, RuntimeError):
    """A command ended, but its exit code could not be learned."""


class SessionExistsError(SwerexException, ValueError):
    """There is a session of this name already."""


class SessionDoesNotExistError(SwerexException, ValueError):
    """There is no session of this name: it was never created, or it was closed."""


class SessionDiedError(SwerexException, RuntimeError):
    """The session's shell has ended, so it can take no more commands. Close the session and create another.

    Of `exit_code` and `signal` (its number) one is set when the cause is known; both are None when it is not.
    """

    def __init__(
        self, message: str = "The session's shell has ended", *, exit_code: int | None = None, signal: int | None = None
    ):
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal


class SessionLostSyncError(SwerexException, RuntimeError):
    """It can no longer be proved which output and exit code belong to which command, so none are returned.

    Close the session and create another.
    """


class SessionBusyError(CommandTimeoutError):
    """An earlier command still runs in the session, and did not end in the time that the new one had.

    The new command was not sent. Interrupt the session, or wait longer.
    """


class RuntimeClosedError(SwerexException, RuntimeError):
    """The runtime was closed before or during the request."""


class InvalidInputError(SwerexException, ValueError):
    """A request that can be refused before anything is done: a NUL byte in a command, a negative timeout, an empty or
    invalid regular expression to expect, a missing startup file, a session type that does not exist."""


class ResourceError(SwerexException, RuntimeError):
    """The machine lacks something: no bash, no free pseudo-terminal, no file descriptors, no memory, no port.

    `errno` is the system's error number when a system call failed. This is no `OSError`, so that a handler for missing
    files does not take it for one.
    """

    def __init__(self, message: str = "The machine is out of a resource", *, errno: int | None = None):
        super().__init__(message)
        self.errno = errno


class NotSupportedError(SwerexException, NotImplementedError):
    """This runtime cannot do what was asked, though others can."""


class UploadError(SwerexException, OSError):
    """A file or a tree cannot be copied as asked: a special file, a source within its own target, a directory in the
    place of a file. The system's own refusals come as its `OSError` instead."""


# Containers, hosts and other places


class PlaceLostError(SwerexException, RuntimeError):
    """The container, host or other place in which commands ran can run nothing any more, or cannot be reached.

    A command that was under way may have been carried out in part. Stop the deployment and start another.
    """


class TimeLimitError(PlaceLostError):
    """The environment has existed for as long as its time limit allows, and was ended with everything in it."""


class MemoryLimitError(PlaceLostError):
    """What ran in the environment took more memory than its limit allows; it was ended with everything in it."""


# Servers


class AuthenticationError(SwerexException, RuntimeError):
    """The server refuses the key, or none was sent."""


class ConnectionLostError(SwerexException, RuntimeError, ConnectionError):
    """The server cannot be reached, or no longer answers, in the time that there was for it.

    A request that was sent before may have been carried out, once.
    """


class ServerRestartedError(SwerexException, RuntimeError):
    """The server is not the process that it was: the sessions that were made there are gone with the old one, and
    whether the requests that it had not answered were carried out is not known."""


class ResultLostError(SwerexException, RuntimeError):
    """The request was carried out, or was begun to be; its result is no longer kept by the server."""


class ServerLimitError(SwerexException, RuntimeError):
    """The request is larger than the server takes, or one too many for it just now. It was not carried out."""


class ProtocolError(SwerexException, RuntimeError):
    """What the other end sent is not what it may send, or the library that talks to it failed as it should not."""


# Deployments


class DeploymentNotStartedError(SwerexException, RuntimeError):
    """The deployment has no runtime: it was not started, or it was stopped."""

    def __init__(self, message: str = "Deployment not started"):
        super().__init__(message)


class DeploymentStartupError(SwerexException, RuntimeError):
    """The deployment could not be started."""


class DockerPullError(DeploymentStartupError):
    """An image could not be pulled."""


class StartupTimeoutError(DeploymentStartupError, TimeoutError):
    """The deployment did not start within its `startup_timeout`. What had been started of it was ended."""


class PodStartupError(DeploymentStartupError):
    """A pod of Kubernetes could not be started.

    `cause` is one of `image`, `quota`, `forbidden`, `refused` (the API server takes no such pod), `namespace`,
    `configuration` (what the pod refers to is missing, or is not as it must be), `unschedulable`, `volume`, `command`
    (what its container runs has ended, or cannot be run), `out-of-memory`, `evicted`, `node`, `deadline`, `deleted`,
    `unreachable` (no cluster answers), `credentials` (it does not let us in) and `unknown`. `reason` is Kubernetes' own
    word for it, such as `ImagePullBackOff`; `exit_code` and `log`, the last lines, are those of the container if it
    ran.
    """

    def __init__(
        self, message: str, *, cause: str = "unknown", reason: str = "", exit_code: int | None = None, log: str = ""
    ):
        super().__init__(message)
        self.cause = cause
        self.reason = reason
        self.exit_code = exit_code
        self.log = log


class PodStartupTimeoutError(PodStartupError, StartupTimeoutError):
    """The same, where what keeps a pod from starting might have passed, but did not within `startup_timeout`."""


class NotAvailableError(SwerexException, RuntimeError):
    """The configuration is valid, but this version of the package has no such deployment, runtime or server."""


# Pools


class PoolError(SwerexException, RuntimeError):
    """A pool cannot do what was asked. Nothing was handed out."""


class PoolFullError(PoolError):
    """Every environment is in use, and as many callers wait for one as may. Ask again later."""


class PoolTimeoutError(PoolError, TimeoutError):
    """No environment became free in the time that the caller would wait."""


class PoolClosedError(PoolError):
    """The pool was closed: before the request, while the caller waited, or while the environment was in use."""


class EnvironmentStartError(DeploymentStartupError):
    """A pool could not start an environment, as often as it tried; what went wrong last is the `__cause__`.

    `attempts` is how often it tried.
    """

    def __init__(self, message: str = "The environment could not be started", *, attempts: int = 1):
        super().__init__(message)
        self.attempts = attempts


class EnvironmentLostError(PlaceLostError):
    """The environment of a pool ended while it was in use. What ran in it may have been carried out in part, and
    nothing of it is run again."""


class EnvironmentTimeLimitError(EnvironmentLostError):
    """The environment was in use for as long as the pool's `time_limit` lets it, or was there for its first user for
    as long as its own limit does, and was ended."""


class EnvironmentMemoryLimitError(EnvironmentLostError):
    """What ran in the environment took more memory than its own limit lets it, and it was ended."""


# Tests and the swap


class DummyOutputsExhaustedError(SwerexException, RuntimeError):
    """The dummy runtime was asked for more observations than it was given."""


class SwapError(SwerexException, RuntimeError):
    """`swerex` cannot be replaced, or no longer."""
