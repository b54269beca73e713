"""The tokens that result budgets saved: those that tools returned minus those delivered to agents."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.ports.meter import Meter


@dataclass(slots=True)
class Savings:
    """Totals of this process since its start, in tokens.

    ``had``: tokens of the results. ``delivered``: tokens delivered at once. ``read_later``: tokens that agents read
    afterwards. ``previewed`` counts the results over budget, ``unkept`` those of them that could not be stored.
    """

    meter: Meter
    had: int = 0
    delivered: int = 0
    read_later: int = 0
    previewed: int = 0
    unkept: int = 0

    @property
    def saved(self) -> int:
        """Saved tokens net of later reads; negative if previews cost more than they saved."""
        return self.had - self.delivered - self.read_later

    def whole(self, tokens: int) -> None:
        """Count a result that was delivered whole."""
        self._count(had=tokens, delivered=tokens)

    def preview(self, had: int, delivered: int, *, kept: bool) -> None:
        """Count a result over budget."""
        self.previewed += 1
        if not kept:
            self.unkept += 1
        self.meter.event("result_previewed" if kept else "result_not_kept")
        self._count(had=had, delivered=delivered)

    def follow_up(self, tokens: int) -> None:
        """Count a later read of a stored result."""
        self._count(read_later=tokens)

    def _count(self, had: int = 0, delivered: int = 0, read_later: int = 0) -> None:
        self.had += had
        self.delivered += delivered
        self.read_later += read_later
        self.meter.result_tokens(had=had, delivered=delivered, read_later=read_later)
