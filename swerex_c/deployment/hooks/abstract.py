"""What a hook of a deployment looks like."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["CombinedDeploymentHook", "DeploymentHook"]


class DeploymentHook:
    """Base of all hooks: every method may be overridden, and does nothing here."""

    def on_custom_step(self, message: str) -> None:
        """Called when the deployment begins a step, such as pulling an image."""


class CombinedDeploymentHook(DeploymentHook):
    """Passes every call on to a list of hooks, in the order in which they were added."""

    def __init__(self, hooks: Iterable[DeploymentHook] | None = None):
        self._hooks: list[DeploymentHook] = []
        for hook in hooks or ():
            self.add_hook(hook)

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.append(hook)

    def on_custom_step(self, message: str) -> None:
        for hook in self._hooks:
            hook.on_custom_step(message)
