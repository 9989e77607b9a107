"""What all operations of a worker share: the engine, and sessions that stay open."""

from __future__ import annotations

from engines.base import Contender

__all__ = ["Operations"]


class Operations:
    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.kept: set[str] = set()

    async def session(self, key: str) -> str:
        """A session that stays open between rounds; one for each operation, so that none disturbs another."""
        if key not in self.kept:
            await self.contender.open(key)
            self.kept.add(key)
        return key
