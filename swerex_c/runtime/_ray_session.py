"""Which cluster of Ray this process is in, and as what: so that it is noticed when it has left.

When Ray was shut down in a process, the next call of most of Ray's functions connects it again, or starts a cluster of
its own on this machine (auto-init), and what is then asked for is not there. So whoever began something in a cluster
keeps the `Membership` of that moment, and asks it before each call.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Membership"]


@dataclass(frozen=True)
class Membership:
    """One connection of this process to a cluster, from `ray.init` to `ray.shutdown`. Any thread may ask."""

    node: str
    """The node by which it is connected. Its id is drawn anew for each cluster."""

    job: str
    """The job that the process is, or works for. A process that connects again is another one."""

    @classmethod
    def now(cls) -> Membership | None:
        """That of this process; None if it is in no cluster."""
        import ray

        if not ray.is_initialized():
            return None
        try:
            context = ray.get_runtime_context()
            return cls(context.get_node_id(), context.get_job_id())
        except Exception:
            if ray.is_initialized():
                raise
            return None  # it has left just now

    def over(self) -> str | None:
        """What became of it, as a sentence without its full stop; None if it goes on."""
        now = self.now()
        if now == self:
            return None
        if now is None:
            return "Ray was shut down in this process"
        return f"Ray was shut down in this process, which has since been connected to a cluster as the job {now.job}"
