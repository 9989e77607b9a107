"""How this package asks AWS: one kind of client, and one kind of error with a sentence that says what is wrong.

Everything here blocks. boto3 is imported with the first client.
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
"""What everything carries that is made for a deployment, by SWE-ReX as by this package."""

_CONNECT_SECONDS = 10
_READ_SECONDS = 20
_ATTEMPTS = 6
"""Requests that are throttled, or whose answer does not come, are sent so often, with pauses of up to 20 seconds."""

_WORDS = 1000
"""Characters that are told of what AWS says: a proxy on the way to it may say a whole page."""

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

_making = threading.Lock()
"""Held while a client is made: boto3's session, unlike its clients, is not for several threads at once."""

_check: ContextVar[Callable[[], object] | None] = ContextVar("_check", default=None)


class AwsError(SwerexException, RuntimeError):
    """AWS cannot be asked, or refuses what it was asked for.

    `code` is AWS's own name of the error; None if it has none. What botocore raised is the `__cause__`.
    `may_be_done` is whether AWS may have done what it was asked for all the same: no answer came, or not to each of
    the requests that were sent for it.
    """

    def __init__(
        self, message: str = "AWS refuses the request", *, code: str | None = None, may_be_done: bool = False
    ):
        super().__init__(message)
        self.code = code
        self.may_be_done = may_be_done


def client(service: str) -> Any:
    """A client of boto3 for a service, of boto3's default session, which has the region and the credentials.

    It may be used by several threads.

    Raises:
        NotAvailableError: if boto3 is not installed.
        AwsError: if there is no region, or boto3's configuration is not usable.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise NotAvailableError(
            f"AWS is reached by the package boto3, which cannot be imported ({error}): pip install 'swerex-c[fargate]'"
        ) from None
    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        user_agent_extra="swerex-c",
    )
    with explained(f"reach the service {service}"), _making:
        made = boto3.client(service, config=config)
    made.meta.events.register("before-send", _before_send)
    return made


@contextlib.contextmanager
def checking(check: Callable[[], object]) -> Iterator[None]:
    """Within this, and in this thread: call `check` before anything is sent to AWS. What it raises is raised there."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def _before_send(**_: Any) -> None:
    # Also before a request is sent again, which botocore does by itself.
    if (check := _check.get()) is not None:
        check()


def code_of(error: BaseException) -> str | None:
    """AWS's name of an error that it answered with; None for other errors."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return code if isinstance(code, str) else None


def words_of(error: BaseException) -> str:
    """What AWS said about an error, or the error itself."""
    response = getattr(error, "response", None)
    message = response.get("Error", {}).get("Message") if isinstance(response, dict) else None
    return " ".join(str(message or error).split())[:_WORDS].rstrip(".")


@contextlib.contextmanager
def explained(doing: str) -> Iterator[None]:
    """Raise what botocore raises within as an `AwsError` that says what could not be done, and why.

    Args:
        doing: what is done, as after "cannot": "make the cluster x". It may be used to decorate a function.
    """
    try:
        yield
    except Exception as error:
        # By the modules' names: nothing of botocore is imported only to find that there is no error of it.
        if type(error).__module__.partition(".")[0] not in ("boto3", "botocore") and code_of(error) is None:
            raise
        message = f"AWS: cannot {doing}: {_reason(error)}"
        raise AwsError(message, code=code_of(error), may_be_done=_may_be_done(error)) from error


def _may_be_done(error: Exception) -> bool:
    from botocore import exceptions as botocore
    from botocore.parsers import ResponseParserError

    if (code := code_of(error)) is None:
        # Of an answer that cannot be read it is not known what it was to.
        unread = botocore.IncompleteReadError | ResponseParserError
        return isinstance(error, botocore.ConnectionError | botocore.HTTPClientError | unread)
    status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return code in _TOO_OFTEN or status >= 500


def _reason(error: Exception) -> str:
    from botocore import exceptions as botocore

    code, words = code_of(error), words_of(error)
    if code is not None:
        if code in _REFUSED:
            return f"the credentials are refused ({code}: {words}); {_HOW_CREDENTIALS}"
        if code in _FORBIDDEN:
            return f"these credentials may not do that ({words})"
        if code in _TOO_OFTEN:
            return f"it is asked too often ({code}: {words}), {_ATTEMPTS} times in a row"
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
        return f"the credentials cannot be had ({words}); {_HOW_CREDENTIALS}"
    if isinstance(error, botocore.ConnectionError | botocore.HTTPClientError):
        return f"it does not answer ({words})"
    return words
