"""Clients of AWS services, and the error that their exceptions become. All functions block."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from swerex_c.exceptions import SwerexException
from swerex_c.utils.load import load_library

__all__ = ["TAG_KEY", "TAG_VALUE", "AwsError", "client", "code_of", "explained", "ignored"]

TAG_KEY = "origin"
TAG_VALUE = "swe-rex-deployment-auto"
"""Value of the tag on every resource that SWE-ReX or this package creates for a deployment."""

_WORDS = 1000
"""Maximum characters of botocore's message in an error: a proxy on the way may respond with a whole page."""

_SET_CREDENTIALS = (
    "set the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile of ~/.aws in AWS_PROFILE"
)
_REFUSED_CREDENTIALS = (
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)
_HINTS = {
    "NoRegionError": "set the variable AWS_DEFAULT_REGION, or `region` in ~/.aws/config",
    **dict.fromkeys(_REFUSED_CREDENTIALS, _SET_CREDENTIALS),
}
"""Advice by the code of an error, or by the name of botocore's exception."""

_creating = threading.Lock()
"""Lock for making a client: boto3's session, unlike its clients, is not thread-safe."""


class AwsError(SwerexException, RuntimeError):
    """A request that AWS refused, or that did not reach AWS.

    `code` is AWS's name of the error, or None. The exception of botocore is the `__cause__`.
    """

    def __init__(self, message: str = "AWS refuses the request", *, code: str | None = None):
        super().__init__(message)
        self.code = code


def client(service: str) -> Any:
    """Return a client of boto3's default session for a service, which several threads may use.

    Raises:
        NotAvailableError: if boto3 is not installed.
        AwsError: if there is no region, or boto3's configuration is invalid.
    """
    boto3 = load_library("boto3", "fargate")
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": 3}  # of a request that is throttled or gets no response
    config = Config(connect_timeout=10, read_timeout=20, retries=retries, user_agent_extra="swerex-c")
    with explained(f"connect to the service {service}"), _creating:
        return boto3.client(service, config=config)


def code_of(error: BaseException) -> str | None:
    """Return AWS's name of an error in a response of AWS, or None for other errors."""
    response = getattr(error, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None


@contextlib.contextmanager
def ignored(*codes: str) -> Iterator[None]:
    """Suppress AWS's errors that have one of these names."""
    try:
        yield
    except Exception as error:
        if code_of(error) not in codes:
            raise


@contextlib.contextmanager
def explained(doing: str) -> Iterator[None]:
    """Convert botocore's exceptions to an `AwsError` with the action and the reason.

    Args:
        doing: the action, as after "cannot": "make the cluster x".
    """
    try:
        yield
    except Exception as error:
        # Compare module names, so that botocore is not imported for an error that is not its own.
        if type(error).__module__.partition(".")[0] not in ("boto3", "botocore"):
            raise
        code = code_of(error)
        hint = _HINTS.get(code or type(error).__name__)
        words = " ".join(str(error).split())[:_WORDS].rstrip(".")
        raise AwsError(f"AWS: cannot {doing}: {words}" + (f"; {hint}" if hint else ""), code=code) from error
