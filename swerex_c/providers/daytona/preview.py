"""Client of a server behind a preview link of Daytona."""

from __future__ import annotations

from typing import Self

from swerex_c.runtime.config import RemoteRuntimeConfig
from swerex_c.runtime.remote import RemoteRuntime

__all__ = ["PreviewRuntime"]


class PreviewRuntime(RemoteRuntime):
    """A `RemoteRuntime` whose requests also have the token of a preview link.

    The token is for Daytona, not for the server.
    """

    _preview_token = ""

    @classmethod
    def behind(cls, token: str, config: RemoteRuntimeConfig) -> Self:
        """Create a client of a server behind a preview link.

        Args:
            token: the link's token; empty for a sandbox whose links are public.
        """
        runtime = cls.from_config(config)
        runtime._preview_token = token
        return runtime

    @property
    def _headers(self) -> dict[str, str]:
        token = {"X-Daytona-Preview-Token": self._preview_token} if self._preview_token else {}
        # Without this header, a warning page for people may come in place of the server's first response.
        return super()._headers | token | {"X-Daytona-Skip-Preview-Warning": "true"}
