"""Exception classes of this package.

File operations are different: reading, writing and uploading raise the system's `OSError` (`FileNotFoundError`,
`PermissionError`, ...) with its `errno` and `filename`, and `UnicodeError` for text that cannot be decoded, because
callers catch these.

Every class can be constructed from its message alone and keeps all attributes when pickled. `str()` returns the
message with control characters made visible. `except SwerexException` catches all of them.
"""

from __future__ import annotations

from typing import Any

from swerex_c.utils.visible import visible


class SwerexException(Exception):
    """Base class of all exceptions of this package.

    Its text shows control characters, such as escape as `\\x1b`.
    """

    def __str__(self) -> str:
        return visible(super().__str__())


# Sessions and commands


class SessionNotInitializedError(SwerexException, RuntimeError):
    """The session object was never started, or it is closed."""


class NonZeroExitCodeError(SwerexException, RuntimeError):
    """A checked command ended with an exit code other than 0.

    A `BashAction` is checked with `check="raise"`, a `Command` with `check=True`.
    """


class BashIncorrectSyntaxError(SwerexException, RuntimeError):
    """Bash rejected the command's syntax. No part of the command was run.

    `extra_info` holds bash's messages as `bash_stdout` and `bash_stderr`.
    """

    def __init__(self, message: str, *, extra_info: dict[str, Any] | None = None):
        super().__init__(message)
        self.extra_info: dict[str, Any] = {} if extra_info is None else extra_info


class CommandTimeoutError(SwerexException, RuntimeError, TimeoutError):
    """A command exceeded its timeout, or the search for `expect` took too long.

    The timeout may be the no-output timeout. `expect` is searched for in the command's output.

    In a session the command still runs until it is interrupted; a command that `execute` started has been ended.
    `output` is the output until then (in `execute`: standard output, and standard error too if merged).
    """

    def __init__(self, *args: object, output: str = ""):
        super().__init__(*args)
        self.output = output


class NoExitCodeError(SwerexException, RuntimeError):
    """A command ended, but its exit code could not be determined.

    A checked command of a session may still run: a pattern of `expect` was found. A program that `execute` started has
    ended, but the process ignores SIGCHLD, or another part of it waits for all child processes. `output` is then the
    program's output (standard output, and standard error too if merged).
    """

    def __init__(self, *args: object, output: str = ""):
        super().__init__(*args)
        self.output = output


class SessionExistsError(SwerexException, ValueError):
    """A session with this name already exists."""


class SessionDoesNotExistError(SwerexException, ValueError):
    """No session has this name: it was never created, or it was closed."""


class SessionDiedError(SwerexException, RuntimeError):
    """The session's shell has ended, so it accepts no more commands.

    Close the session and create another. If the cause is known, either `exit_code` or `signal` (a signal number) is
    set; otherwise both are None.
    """

    def __init__(
        self, message: str = "The session's shell has ended", *, exit_code: int | None = None, signal: int | None = None
    ):
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal


class SessionLostSyncError(SwerexException, RuntimeError):
    """The session can no longer prove which results belong to which command.

    It therefore returns no output and no exit code. Close the session and create another.
    """


class SessionBusyError(CommandTimeoutError):
    """An earlier command still runs in the session.

    It did not end within the timeout of the new command, which was not sent. Interrupt the session, or wait longer.
    """


class RuntimeClosedError(SwerexException, RuntimeError):
    """The runtime was closed before or during the request."""


class InvalidInputError(SwerexException, ValueError):
    """The request is invalid and was refused before anything was done.

    Examples are a NUL byte in a command, a negative timeout, an empty or invalid regular expression in `expect`, a
    missing startup file, and an unknown session type.
    """


class ResourceError(SwerexException, RuntimeError):
    """The machine lacks a resource.

    Examples are bash, a free pseudo-terminal, file descriptors, memory, and a port.

    `errno` is the system's error number if a system call failed. The class is not an `OSError`, so that a handler for
    missing files does not catch it.
    """

    def __init__(self, message: str = "The machine has run out of a resource", *, errno: int | None = None):
        super().__init__(message)
        self.errno = errno


class NotSupportedError(SwerexException, NotImplementedError):
    """This runtime does not support the operation, though other runtimes do."""


class UploadError(SwerexException, OSError):
    """A file or a directory tree cannot be copied.

    The cause is, for example, a special file, a target within its own source, or a directory where a file should be.
    Errors of the system itself are raised as its `OSError` instead.
    """


# Sandboxes: containers, hosts and others


class SandboxLostError(SwerexException, RuntimeError):
    """The sandbox can run no more commands, or cannot be reached.

    The sandbox is a container, a host or similar. A command that was running may have been executed in part. Stop the
    deployment and start another.
    """


class TimeLimitError(SandboxLostError):
    """The environment reached its time limit, or that of its use in a pool, and was ended with everything in it."""


class MemoryLimitError(SandboxLostError):
    """The environment exceeded its memory limit and was ended with everything in it."""


# Servers


class AuthenticationError(SwerexException, RuntimeError):
    """The server refused the key, or no key was sent."""


class ConnectionLostError(SwerexException, RuntimeError, ConnectionError):
    """The server could not be reached, or did not respond, within the timeout.

    A request that was already sent may have been executed, at most once.
    """


class ServerRestartedError(SwerexException, RuntimeError):
    """The server was restarted, and its sessions ended with the old process.

    It is unknown whether the old process executed the requests that it had not answered.
    """


class ResultLostError(SwerexException, RuntimeError):
    """The server no longer keeps the result of a request, which was executed at least in part."""


class ServerLimitError(SwerexException, RuntimeError):
    """The request or its answer exceeds a limit of the server.

    A request that is too large, or one too many at the same time, was not executed; one whose answer cannot be sent
    was.
    """


class ProtocolError(SwerexException, RuntimeError):
    """The peer violated the protocol, or the library for it failed unexpectedly."""


# Deployments


class DeploymentNotStartedError(SwerexException, RuntimeError):
    """The deployment has no runtime: it was not started, or it was stopped."""

    def __init__(self, message: str = "Deployment not started: call `await deployment.start()` first"):
        super().__init__(message)


class DeploymentStartupError(SwerexException, RuntimeError):
    """The deployment could not be started."""


class DockerPullError(DeploymentStartupError):
    """An image could not be pulled."""


class StartupTimeoutError(DeploymentStartupError, TimeoutError):
    """The deployment did not start within its `startup_timeout`. The parts that had been started were ended."""


class PodStartupError(DeploymentStartupError):
    """A Kubernetes pod could not be started.

    `cause` is one of `image`, `quota`, `forbidden`, `refused` (the API server rejects the pod), `namespace`,
    `configuration` (an object that the pod refers to is missing or wrong), `unschedulable`, `volume`, `command` (the
    container's command has ended or cannot be run), `out-of-memory`, `evicted`, `node`, `deadline`, `deleted`,
    `unreachable` (no cluster responds), `credentials` (the cluster refuses them) and `unknown`. `reason` is
    Kubernetes' own term, such as `ImagePullBackOff`; `exit_code` and `log` (the last lines) are those of the container
    if it ran.
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
    """A Kubernetes pod did not start within `startup_timeout`, perhaps for a temporary reason."""


class NotAvailableError(SwerexException, RuntimeError):
    """This installation lacks a part that a valid configuration needs.

    The part is a deployment, a runtime, a server or an optional package.
    """


# Pools


class PoolError(SwerexException, RuntimeError):
    """A pool cannot carry out the request. No environment was handed out."""


class PoolFullError(PoolError):
    """Every environment is in use, and the queue of waiting callers is full. Try again later."""


class PoolTimeoutError(PoolError, TimeoutError):
    """No environment became free within the caller's `wait_timeout`."""


class PoolClosedError(PoolError):
    """The pool was closed before the request, while the caller waited, or while the environment was in use."""


class EnvironmentStartError(DeploymentStartupError):
    """A pool could not start an environment.

    The error of the last attempt is the `__cause__`. `attempts` is the number of attempts.
    """

    def __init__(self, message: str = "The environment could not be started", *, attempts: int = 1):
        super().__init__(message)
        self.attempts = attempts


# Tests and the swap


class DummyOutputsExhaustedError(SwerexException, RuntimeError):
    """The dummy runtime received more actions than it has observations."""


class SwapError(SwerexException, RuntimeError):
    """The swap of `swerex` cannot be installed or removed.

    `swerex` is already imported, or the swap's file cannot be written or removed.
    """


__all__ = [name for name, it in list(vars().items()) if isinstance(it, type) and issubclass(it, SwerexException)]
