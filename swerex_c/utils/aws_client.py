"""Clients of AWS services, and an error class that explains failed requests.

All functions here block. boto3 is imported with the first client.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from swerex_c.exceptions import NotAvailableError, SwerexException

__all__ = ["TAG_KEY", "TAG_VALUE", "AwsError", "checking", "client", "code_of", "explained", "words_of"]

TAG_KEY = "origin"
TAG_VALUE = "swe-rex-deployment-auto"
"""Value of the tag on every resource that SWE-ReX or this package creates for a deployment."""

_CONNECT_SECONDS = 10
_READ_SECONDS = 20
_ATTEMPTS = 6
"""Maximum attempts of a request that is throttled or gets no response, with pauses of up to 20 seconds."""

_WORDS = 1000
"""Maximum characters of AWS's message in an error: a proxy on the way may respond with a whole page."""

_REFUSED = (
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)
_FORBIDDEN = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_TOO_OFTEN = ("RequestLimitExceeded", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequestsException")

_HOW_REGION = "set the variable AWS_DEFAULT_REGION, or `region` in ~/.aws/config"
_HOW_CREDENTIALS = (
    "set the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile of ~/.aws in AWS_PROFILE"
)

_creating = threading.Lock()
"""Lock for making a client: boto3's session, unlike its clients, is not thread-safe."""

_check: ContextVar[Callable[[], object] | None] = ContextVar("_check", default=None)


class AwsError(SwerexException, RuntimeError):
    """A request to AWS that failed, because AWS could not be reached or refused it.

    `code` is AWS's own name of the error; None if it has none. The exception of botocore is the `__cause__`.
    `may_be_done` is whether AWS may have carried out the request in spite of the error: no response came, or not to
    each of its attempts.
    """

    def __init__(
        self, message: str = "AWS refuses the request", *, code: str | None = None, may_be_done: bool = False
    ):
        super().__init__(message)
        self.code = code
        self.may_be_done = may_be_done


def client(service: str) -> Any:
    """Return a boto3 client for a service, which several threads may use.

    The region and the credentials are those of boto3's default session.

    Raises:
        NotAvailableError: if boto3 is not installed.
        AwsError: if there is no region, or boto3's configuration is invalid.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise NotAvailableError(
            f"AWS needs the package boto3, which cannot be imported ({error}): pip install 'swerex-c[fargate]'"
        ) from None
    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        user_agent_extra="swerex-c",
    )
    with explained(f"connect to the service {service}"), _creating:
        made = boto3.client(service, config=config)
    made.meta.events.register("before-send", _before_send)
    return made


@contextlib.contextmanager
def checking(check: Callable[[], object]) -> Iterator[None]:
    """Call `check` before every request to AWS in this block and this thread.

    The request raises the exceptions of `check`.
    """
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def _before_send(**_: Any) -> None:
    # botocore also calls this before each of its own retries.
    if (check := _check.get()) is not None:
        check()


def code_of(error: BaseException) -> str | None:
    """Return AWS's name of an error in a response of AWS, or None for other errors."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return code if isinstance(code, str) else None


def words_of(error: BaseException) -> str:
    """Return AWS's message of an error, or else the error's own text."""
    response = getattr(error, "response", None)
    message = response.get("Error", {}).get("Message") if isinstance(response, dict) else None
    return " ".join(str(message or error).split())[:_WORDS].rstrip(".")


@contextlib.contextmanager
def explained(doing: str) -> Iterator[None]:
    """Convert botocore's exceptions to an `AwsError` with the action and the reason.

    This works for a block, and for a decorated function.

    Args:
        doing: the action, as after "cannot": "make the cluster x".
    """
    try:
        yield
    except Exception as error:
        # Compare module names, so that botocore is not imported for an error that is not its own.
        if type(error).__module__.partition(".")[0] not in ("boto3", "botocore") and code_of(error) is None:
            raise
        message = f"AWS: cannot {doing}: {_reason(error)}"
        raise AwsError(message, code=code_of(error), may_be_done=_may_be_done(error)) from error


def _may_be_done(error: Exception) -> bool:
    from botocore import exceptions as botocore
    from botocore.parsers import ResponseParserError

    if (code := code_of(error)) is None:
        # A response that cannot be read does not show whether the request was carried out.
        unread = botocore.IncompleteReadError | ResponseParserError
        return isinstance(error, botocore.ConnectionError | botocore.HTTPClientError | unread)
    status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return code in _TOO_OFTEN or status >= 500


def _reason(error: Exception) -> str:
    from botocore import exceptions as botocore

    code, words = code_of(error), words_of(error)
    if code is not None:
        if code in _REFUSED:
            return f"AWS refuses the credentials ({code}: {words}); {_HOW_CREDENTIALS}"
        if code in _FORBIDDEN:
            return f"the credentials do not permit it ({words})"
        if code in _TOO_OFTEN:
            return f"AWS throttles the requests ({code}: {words}), {_ATTEMPTS} times in a row"
        return f"{code}: {words}"
    if isinstance(error, botocore.NoRegionError):
        return f"no region is configured; {_HOW_REGION}"
    if isinstance(error, botocore.NoCredentialsError | botocore.NoAuthTokenError):
        return f"there are no credentials; {_HOW_CREDENTIALS}"
    if isinstance(
        error,
        botocore.PartialCredentialsError
        | botocore.CredentialRetrievalError
        | botocore.TokenRetrievalError
        | botocore.SSOError
        | botocore.ProfileNotFound,
    ):
        return f"the credentials cannot be loaded ({words}); {_HOW_CREDENTIALS}"
    if isinstance(error, botocore.ConnectionError | botocore.HTTPClientError):
        return f"AWS does not answer ({words})"
    return words
