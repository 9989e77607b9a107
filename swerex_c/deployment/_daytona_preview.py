"""The client of a server that is behind a preview link of Daytona's."""

from __future__ import annotations

from typing import Self

from swerex_c.runtime.config import RemoteRuntimeConfig
from swerex_c.runtime.remote import RemoteRuntime

__all__ = ["PreviewRuntime"]


class PreviewRuntime(RemoteRuntime):
    """A `RemoteRuntime` whose requests show the link's token too, which is for Daytona and not for the server."""

    _preview_token = ""

    @classmethod
    def behind(cls, token: str, config: RemoteRuntimeConfig) -> Self:
        """token: that of the link; empty for a sandbox whose links are public."""
        runtime = cls.from_config(config)
        runtime._preview_token = token
        return runtime

    @property
    def _headers(self) -> dict[str, str]:
        token = {"X-Daytona-Preview-Token": self._preview_token} if self._preview_token else {}
        # Else a page for people may come before the server's first answer.
        return super()._headers | token | {"X-Daytona-Skip-Preview-Warning": "true"}
