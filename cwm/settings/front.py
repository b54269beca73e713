"""Settings of the front: how clients reach the gateway, and their limits."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final, Literal

from pydantic import Field, field_validator

from cwm.domain.json_bounds import MOST_VALUES
from cwm.domain.limits import NONE, LimitRules, Rate, parse_rates
from cwm.settings.fields import Bytes, Count, Gigabytes, Group, Seconds
from cwm.settings.origins import Names, Origins, split

AUTO: Final = "auto"

_SESSION_RATES: Final = "60/minute, 1000/hour"
_SESSIONS_OF_A_PRINCIPAL: Final = 10
_LIST_RATES: Final = "600/minute"
_RUNNING_OF_A_PRINCIPAL: Final = 16
_RUNNING_OF_A_TENANT: Final = 64
_STORED_GB_OF_A_PRINCIPAL: Final = 4
_STORED_GB_OF_A_TENANT: Final = 32


class Http(Group):
    """The gateway's HTTP server."""

    host: str = Field("127.0.0.1", description="Address on which the gateway listens.")
    port: int = Field(
        8700, ge=0, le=65535, description="Port on which the gateway listens; 0 picks a free one."
    )
    allow_unauthenticated: bool = Field(
        False,
        description="Allow listening on an address other than loopback without authentication.",
    )
    max_body_bytes: Bytes = Field(
        8 * 1024 * 1024, ge=1024, description="Largest request body accepted, in bytes."
    )
    max_body_values: Count = Field(
        MOST_VALUES,
        ge=1000,
        description="Most values in the JSON of a request body above 64 KiB: each number or text of a list counts as one, each list, object and "
        "named field as eight.",
    )
    drain_seconds: Seconds = Field(
        30.0, ge=0, description="How long a stopping gateway waits for running streams to finish."
    )
    client_retries: Count = Field(
        4,
        ge=0,
        description="How often client commands (`cwm windows`, `sessions`, `reconcile`) repeat what cannot be answered now: "
        "after 1 s, doubling to 60 s, or as the gateway says.",
    )
    console: bool = Field(
        True,
        description="Serve the console, pages for browsers, under /console. With access tokens only it needs CWM_CONSOLE_CLIENT_ID, for the sign-in.",
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses and networks of reverse proxies, comma-separated. X-Forwarded-For is trusted from these only, "
        "to identify the client.",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: str) -> str:
        for each in split(value):
            ip_network(each)
        return value

    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(map(ip_network, split(self.trusted_proxies)))


class Security(Group):
    """Who may reach the gateway through a browser, and which addresses upstreams may have."""

    allowed_hosts: Names = Field(
        (),
        description="Host names by which clients reach the gateway, comma-separated; `*.example.com` matches every name "
        "below it. Loopback, CWM_HOST and the address at which a request arrived are always allowed.",
    )
    allowed_origins: Origins = Field(
        (),
        description="Web pages that may call the gateway, as comma-separated origins (https://app.example.com); "
        "unset: only its own.",
    )
    allow_link_local: bool = Field(
        False,
        description="Allow upstreams at link-local addresses, where clouds serve a machine's credentials.",
    )


class Limits(Group):
    """Limits on callers."""

    rate_limit_session: str = Field(
        "auto",
        description="Rate limit per session, such as '60/minute, 1000/hour', or 'none'. auto means these two rates, or "
        "none for a gateway without authentication on loopback.",
    )
    rate_limit_principal: str = Field(
        AUTO,
        description="Rate limit per user, over all sessions. auto means ten times the limit per session, or none "
        "for a gateway without authentication, which cannot tell users apart.",
    )
    rate_limit_tenant: str = Field(NONE, description="Rate limit per tenant, over all users.")
    rate_limit_lists: str = Field(
        AUTO,
        description="Rate limit per user on reads under /v1 and of the console, lists (tools/list and the like) and subscriptions. auto means 600/minute, or none "
        "for a gateway without authentication, which cannot tell users apart.",
    )
    rate_limit_on_failure: Literal["allow", "refuse"] = Field(
        "allow", description="What to do with requests while the store that counts them is unavailable."
    )
    concurrent_principal: Count | None = Field(
        None,
        ge=0,
        description="Maximum number of requests of one user at once: tool calls, turns, reads, lists and pages of the console; 0 for no limit. Unset: 16 with "
        "authentication, else no limit.",
    )
    concurrent_tenant: Count | None = Field(
        None,
        ge=0,
        description="The same limit for all users of one tenant together. Unset: 64 with authentication, else no limit.",
    )
    streams_principal: Count = Field(
        500,
        ge=0,
        description="Maximum number of notification streams (GET /mcp, subscriptions/listen) of one user on one gateway; 0 for "
        "no limit.",
    )
    token_budget_principal: str = Field(
        NONE,
        description="Token budget for turns of one user, prompts and answers together: rates such as "
        "'200000/hour, 1000000/day', or 'none'.",
    )
    token_budget_tenant: str = Field(
        NONE, description="Token budget for turns of all users of one tenant together."
    )
    stored_principal_gb: Gigabytes | None = Field(
        None,
        ge=0,
        description="Storage limit in GB for what one user said: turns with their token ids and messages, responses and "
        "conversations, compressed; 0 for no limit. Unset: 4 with authentication, else no limit.",
    )
    stored_tenant_gb: Gigabytes | None = Field(
        None,
        ge=0,
        description="The same limit for all users of one tenant together. Unset: 32 with authentication, else no limit.",
    )
    max_header_bytes: Bytes = Field(
        64 * 1024, ge=1024, description="Largest request head accepted (first line and headers), in bytes."
    )
    header_timeout_seconds: Seconds = Field(
        10.0, gt=0, description="Longest time a client may take to send a request head once it has started."
    )
    body_timeout_seconds: Seconds = Field(
        60.0, gt=0, description="Longest time a client may take to send a request body."
    )
    body_memory_bytes: Bytes = Field(
        128 * 1024 * 1024,
        ge=1024,
        description="Most bytes of request bodies that one gateway holds at once, those that still arrive included.",
    )
    body_memory_principal_bytes: Bytes | None = Field(
        None,
        ge=1024,
        description="The same limit for one user. Unset: a quarter of CWM_BODY_MEMORY_BYTES with authentication, else all of it. At least one "
        "body of CWM_MAX_BODY_BYTES always fits.",
    )

    @field_validator("rate_limit_session", "rate_limit_principal", "rate_limit_lists")
    @classmethod
    def _rates_or_auto(cls, value: str) -> str:
        if value.strip() != AUTO:
            parse_rates(value)
        return value.strip()

    @field_validator("rate_limit_tenant", "token_budget_principal", "token_budget_tenant")
    @classmethod
    def _rates(cls, value: str) -> str:
        parse_rates(value)
        return value.strip()

    def rules(self, *, shared_with_others: bool, users_known: bool) -> LimitRules:
        """The limits that these settings amount to.

        ``shared_with_others``: whether anybody but the user of this machine can send requests; ``users_known``:
        whether callers are authenticated.
        """
        session_rates = self.rate_limit_session
        if session_rates == AUTO:
            session_rates = _SESSION_RATES if shared_with_others else NONE
        session = parse_rates(session_rates)
        if self.rate_limit_principal == AUTO:
            # Sessions are free to create, so a limit per session alone would not bound a user.
            principal = _of_all_sessions(session) if users_known else ()
        else:
            principal = parse_rates(self.rate_limit_principal)
        list_rates = self.rate_limit_lists
        if list_rates == AUTO:
            list_rates = _LIST_RATES if users_known else NONE
        return LimitRules(
            lists=parse_rates(list_rates),
            session=session,
            principal=principal,
            tenant=parse_rates(self.rate_limit_tenant),
            running_principal=_running(self.concurrent_principal, _RUNNING_OF_A_PRINCIPAL * users_known),
            running_tenant=_running(self.concurrent_tenant, _RUNNING_OF_A_TENANT * users_known),
            streams_principal=self.streams_principal or None,
            principal_tokens=parse_rates(self.token_budget_principal),
            tenant_tokens=parse_rates(self.token_budget_tenant),
            stored_principal=_stored(self.stored_principal_gb, _STORED_GB_OF_A_PRINCIPAL * users_known),
            stored_tenant=_stored(self.stored_tenant_gb, _STORED_GB_OF_A_TENANT * users_known),
        )


def _running(limit: int | None, default: int) -> int | None:
    return (default if limit is None else limit) or None


def _stored(gigabytes: float | None, default: float) -> int | None:
    return round((default if gigabytes is None else gigabytes) * 2**30) or None


def _of_all_sessions(session: tuple[Rate, ...]) -> tuple[Rate, ...]:
    return tuple(Rate(rate.amount * _SESSIONS_OF_A_PRINCIPAL, rate.seconds) for rate in session)
