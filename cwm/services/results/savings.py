"""What result budgets saved: tokens that tools returned, less those that agents were given of them."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.ports.meter import Meter


@dataclass(slots=True)
class Savings:
    """Totals of this process since it started, in tokens.

    ``had`` is what results held, ``delivered`` what of it went out at once, ``read_later`` what agents then
    read of it all the same; ``previewed`` counts the results that were over budget, ``unkept`` those of
    them whose rest could not be stored.
    """

    meter: Meter
    had: int = 0
    delivered: int = 0
    read_later: int = 0
    previewed: int = 0
    unkept: int = 0

    @property
    def saved(self) -> int:
        """Net of follow-up reads; below zero where previews cost more than they spared."""
        return self.had - self.delivered - self.read_later

    def whole(self, tokens: int) -> None:
        """A result was delivered as it was."""
        self._count(had=tokens, delivered=tokens)

    def preview(self, had: int, delivered: int, *, kept: bool) -> None:
        """A result was over budget."""
        self.previewed += 1
        if not kept:
            self.unkept += 1
        self.meter.event("result_previewed" if kept else "result_not_kept")
        self._count(had=had, delivered=delivered)

    def follow_up(self, tokens: int) -> None:
        """More of a stored result was read."""
        self._count(read_later=tokens)

    def _count(self, had: int = 0, delivered: int = 0, read_later: int = 0) -> None:
        self.had += had
        self.delivered += delivered
        self.read_later += read_later
        self.meter.result_tokens(had=had, delivered=delivered, read_later=read_later)
