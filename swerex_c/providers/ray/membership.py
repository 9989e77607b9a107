"""Detect whether this process has left the Ray cluster that it was connected to.

After Ray was shut down in a process, the next call of most of Ray's functions connects the process again, or starts a
cluster on this machine (auto-init), in which the earlier objects do not exist. Code that creates something in a cluster
therefore keeps the `Membership` of that time and checks it before each call.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Membership"]


@dataclass(frozen=True)
class Membership:
    """One connection of this process to a cluster. Thread-safe.

    It lasts from `ray.init` to `ray.shutdown`.
    """

    node: str
    """Id of the node through which the process is connected. Each cluster generates new ids."""

    job: str
    """Id of the job that the process is or works for. A process that connects again gets another id."""

    @classmethod
    def now(cls) -> Membership | None:
        """Return the current membership of this process, or None if it is in no cluster."""
        import ray

        if not ray.is_initialized():
            return None
        try:
            context = ray.get_runtime_context()
            return cls(context.get_node_id(), context.get_job_id())
        except Exception:
            if ray.is_initialized():
                raise
            return None  # the process has left just now

    def over(self) -> str | None:
        """Return why the membership has ended, or None if it has not ended.

        The reason is a sentence without a full stop.
        """
        now = self.now()
        if now == self:
            return None
        if now is None:
            return "Ray was shut down in this process"
        return f"Ray was shut down in this process, which has since been connected to a cluster as the job {now.job}"
