"""Who listens to what, counted once: against sets."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cwm.services.upstreams.watches import Watches

URIS = st.sampled_from(["a", "b"])
LISTENERS = st.sampled_from(["one", "two", "three"])


class Listening(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.watches = Watches()
        self.model: set[tuple[str, str]] = set()

    def heard(self, uri: str) -> set[str]:
        return {listener for of, listener in self.model if of == uri}

    @rule(uri=URIS, listener=LISTENERS)
    def add(self, uri: str, listener: str) -> None:
        assert self.watches.add(uri, listener) == (not self.heard(uri))
        self.model.add((uri, listener))

    @rule(uri=URIS, listener=LISTENERS)
    def remove(self, uri: str, listener: str) -> None:
        assert self.watches.remove(uri, listener) == (self.heard(uri) == {listener})
        self.model.discard((uri, listener))

    @rule(listener=LISTENERS)
    def forget(self, listener: str) -> None:
        alone = [uri for uri in ("a", "b") if self.heard(uri) == {listener}]
        assert sorted(self.watches.forget(listener)) == alone
        self.model = {(uri, other) for uri, other in self.model if other != listener}

    @invariant()
    def it_is_empty_when_nobody_listens(self) -> None:
        assert bool(self.watches) == bool(self.model)


TestListening = Listening.TestCase
