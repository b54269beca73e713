"""How clients reach the gateway, and how much of it they may have."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final, Literal

from pydantic import Field, field_validator

from cwm.domain.limits import NONE, LimitRules, Rate, parse_rates
from cwm.settings.fields import Bytes, Count, Seconds
from cwm.settings.group import Group
from cwm.settings.origins import Names, Origins

AUTO: Final = "auto"

_SESSION_RATES: Final = "60/minute, 1000/hour"
_SESSIONS_OF_A_PRINCIPAL: Final = 10


class Http(Group):
    """The gateway's own socket."""

    title = "http"

    host: str = Field("127.0.0.1", description="Address the gateway listens on.")
    port: int = Field(8700, ge=0, le=65535, description="Port the gateway listens on; 0 takes a free one.")
    allow_unauthenticated: bool = Field(
        False,
        description="Listen on an address other than loopback although there is no authentication.",
    )
    max_body_bytes: Bytes = Field(
        8 * 1024 * 1024, ge=1024, description="Largest request body accepted, in bytes."
    )
    drain_seconds: Seconds = Field(
        30.0, ge=0, description="How long a stopping gateway lets running streams finish."
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses and networks of reverse proxies, with commas between: from these, and no others, "
        "X-Forwarded-For says who the client is.",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: str) -> str:
        for each in filter(None, (part.strip() for part in value.split(","))):
            ip_network(each)
        return value

    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(part.strip()) for part in self.trusted_proxies.split(",") if part.strip())


class Security(Group):
    """Who may reach the gateway through a browser, and what the gateway may reach for upstreams."""

    title = "security"

    allowed_hosts: Names = Field(
        (),
        description="Host names by which clients reach the gateway, comma-separated; `*.example.com` is every name "
        "below it. Loopback, CWM_HOST and the address that a request came in on need not be named.",
    )
    allowed_origins: Origins = Field(
        (),
        description="Web pages that may call the gateway, as comma-separated origins (https://app.example.com); "
        "unset: none but its own.",
    )
    allow_link_local: bool = Field(
        False,
        description="Let upstreams be at link-local addresses, where clouds keep the credentials of a machine.",
    )


class Limits(Group):
    """How much callers may ask for."""

    title = "limits"

    rate_limit_session: str = Field(
        "auto",
        description="Requests of one session, such as '60/minute, 1000/hour', or 'none'. auto is these two, and "
        "none for a gateway without authentication on loopback.",
    )
    rate_limit_principal: str = Field(
        AUTO,
        description="Requests of one user, over all sessions. auto is ten times what one session may ask for, and none "
        "for a gateway without authentication, which cannot tell users apart.",
    )
    rate_limit_tenant: str = Field(NONE, description="Requests of one tenant, over all users.")
    rate_limit_on_failure: Literal["allow", "refuse"] = Field(
        "allow", description="What becomes of requests while the store that counts them is away."
    )
    concurrent_principal: Count = Field(
        0, ge=0, description="Tool calls, reads and turns of one user at the same time; 0 for no limit."
    )
    concurrent_tenant: Count = Field(0, ge=0, description="The same of one tenant.")
    streams_principal: Count = Field(
        500,
        ge=0,
        description="Streams of news (GET /mcp, subscriptions/listen) of one user that may be open on a gateway; 0 for "
        "no limit.",
    )
    token_budget_principal: str = Field(
        NONE,
        description="Tokens, of prompts and answers, that turns of one user may take: rates such as "
        "'200000/hour, 1000000/day', or 'none'.",
    )
    token_budget_tenant: str = Field(NONE, description="The same of one tenant.")
    max_header_bytes: Bytes = Field(
        64 * 1024, ge=1024, description="Largest head of a request (its first line and headers) in bytes."
    )
    header_timeout_seconds: Seconds = Field(
        10.0, gt=0, description="Longest a client may take to send the head of a request it has begun."
    )
    body_timeout_seconds: Seconds = Field(
        60.0, gt=0, description="Longest a client may take to send the body of a request."
    )

    @field_validator("rate_limit_session", "rate_limit_principal")
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
        """What the settings come to.

        ``shared_with_others``: whether anybody but the user of this machine can ask for something; ``users_known``:
        whether callers show who they are.
        """
        session_rates = self.rate_limit_session
        if session_rates == AUTO:
            session_rates = _SESSION_RATES if shared_with_others else NONE
        session = parse_rates(session_rates)
        if self.rate_limit_principal == AUTO:
            # A session costs nothing, so that a limit for each bounds nobody who makes up another.
            principal = _of_all_sessions(session) if users_known else ()
        else:
            principal = parse_rates(self.rate_limit_principal)
        return LimitRules(
            session=session,
            principal=principal,
            tenant=parse_rates(self.rate_limit_tenant),
            running_principal=self.concurrent_principal or None,
            running_tenant=self.concurrent_tenant or None,
            streams_principal=self.streams_principal or None,
            principal_tokens=parse_rates(self.token_budget_principal),
            tenant_tokens=parse_rates(self.token_budget_tenant),
        )


def _of_all_sessions(session: tuple[Rate, ...]) -> tuple[Rate, ...]:
    return tuple(Rate(rate.amount * _SESSIONS_OF_A_PRINCIPAL, rate.seconds) for rate in session)
