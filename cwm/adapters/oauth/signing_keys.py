"""An issuer's signing keys, read again as they change."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from cwm.adapters.oauth.discovery import jwks_url
from cwm.adapters.oauth.fetch import Fetch
from cwm.domain.errors import AuthorityUnavailableError
from cwm.ports.clock import Clock

FRESH_SECONDS: Final = 300.0
THROTTLE_SECONDS: Final = 10.0
_MOST_KEYS: Final = 64
_LEAST_RSA_BITS: Final = 2048

_KEY_TYPES: Final[dict[str, type[RSAKey | ECKey | OKPKey]]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
_EC_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

_log = logging.getLogger("cwm.oauth")


class SigningKeys:
    """A JWKS, read again when it is five minutes old or when a token names a key that it does not have.

    One read runs at a time, and reads start at least ten seconds apart, whether they succeed or not. While reads
    fail, the last good keys stay valid for ``max_age_seconds``. A caller waits for at most one read per look-up.
    """

    def __init__(
        self, issuer: str, url: str | None, fetch: Fetch, clock: Clock, max_age_seconds: float
    ) -> None:
        self._issuer = issuer
        self._url = url
        self._fetch = fetch
        self._clock = clock
        self._max_age = max_age_seconds
        self._keys: list[Key] = []
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None, algorithm: str) -> Key | None:
        """The key that a token names; for a token that names none, the only suitable key.

        None if the issuer has no such key. Raises CWM-5005 if its keys cannot be read.
        """
        if self._age() > FRESH_SECONDS:
            await self._read_again()
        key = self._matching(key_id, algorithm)
        if key is None and key_id is not None:
            await self._read_again()
            key = self._matching(key_id, algorithm)
        # If the last read failed, a key that is not among the last good ones may be a new one.
        unknown = key is None and self._tried_at > self._read_at
        if unknown or self._age() > self._max_age:
            raise AuthorityUnavailableError("The authorization server's keys cannot be read; try again.")
        return key

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def _age(self) -> float:
        return self._clock.monotonic() - self._read_at

    def _matching(self, key_id: str | None, algorithm: str) -> Key | None:
        candidates = [key for key in self._keys if _fits(key, algorithm)]
        if key_id is not None:
            return next((key for key in candidates if key.get("kid") == key_id), None)
        return candidates[0] if len(candidates) == 1 else None

    async def _read_again(self) -> None:
        if self._reading is None:
            if self._clock.monotonic() - self._tried_at < THROTTLE_SECONDS:
                return
            self._tried_at = self._clock.monotonic()
            self._reading = asyncio.create_task(self._read())
        # wait() does not cancel the read when one of several waiting callers is cancelled.
        await asyncio.wait({self._reading})

    async def _read(self) -> None:
        try:
            url = self._url or await jwks_url(self._issuer, self._fetch)
            self._keys = _usable(await self._fetch.get(url))
            self._read_at = self._clock.monotonic()
        except AuthorityUnavailableError as error:
            _log.warning("The keys of %s cannot be read: %s", self._issuer, error.message)
        finally:
            self._reading = None


def _usable(jwks: dict[str, Any]) -> list[Key]:
    """The public signature keys of a JWKS; other keys are skipped, as RFC 7517 requires. Raises CWM-5005 if none is left."""
    entries = jwks.get("keys")
    keys = [_key(each) for each in entries[:_MOST_KEYS]] if isinstance(entries, list) else []
    good = [key for key in keys if key is not None]
    if not good:
        raise AuthorityUnavailableError("it has no key that this gateway can use")
    return good


def _key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    key_type = _KEY_TYPES.get(str(entry.get("kty")))
    # Skip weak RSA keys by the length of ``n`` before import: the library would log a warning for each.
    if key_type is None or (key_type is RSAKey and len(str(entry.get("n"))) * 6 < _LEAST_RSA_BITS):
        return None
    try:
        return key_type.import_key(entry)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _fits(key: Key, algorithm: str) -> bool:
    if key.get("alg", algorithm) != algorithm:
        return False
    if algorithm.startswith(("RS", "PS")):
        return isinstance(key, RSAKey)
    if algorithm.startswith("ES"):
        return isinstance(key, ECKey) and key.get("crv") == _EC_CURVES.get(algorithm)
    return isinstance(key, OKPKey) and key.get("crv") in _SIGNING_CURVES


_SIGNING_CURVES: Final = frozenset({"Ed25519"})
