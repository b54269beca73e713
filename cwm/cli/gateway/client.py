"""Calls tools of a running gateway, as any agent would."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from cwm.cli.gateway.retries import RetryableError, repeated
from cwm.cli.terminal.console import USAGE, Interrupts, fail, load_settings, run_to_end

if TYPE_CHECKING:
    import httpx2

    from cwm.cli.gateway.mcp import McpError, OtherAnswerError
    from cwm.cli.gateway.transport import LastAnswer

UrlOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The gateway's URL. Default: http://127.0.0.1 at CWM_PORT.",
        metavar="URL",
    ),
]
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the tool's result as JSON instead of text.")
]
OnPiece: TypeAlias = Callable[[str], None]

_LAST_PORT: Final = 65_535
_NOT_OURS: Final = {200, 404, 405}
_FIRST_FAULT: Final = 400
_NOT_CARRIED_OUT: Final = {429, 503}
_FOR_NOW: Final = {*_NOT_CARRIED_OUT, 502, 504}
_MEANINGS: Final = {
    500: ": it failed; its log says why",
    502: ": it is a proxy that does not reach the gateway",
    503: ": it accepts no requests now; try again",
    504: ": it is a proxy that waited too long for the gateway",
}


class ToolRefusedError(RetryableError):
    """The error object that the gateway returned: ``{code, message, retryable, context}``."""

    def __init__(self, error: Mapping[str, Any], hint: str = "") -> None:
        self.code, self.message = str(error["code"]), f"{error['message']}{hint}"
        super().__init__(self.message)
        self.context: Mapping[str, Any] = error.get("context") or {}
        self.retryable = error.get("retryable") is True
        self.retry_after = error.get("retry_after_seconds")


class GatewayAwayError(RetryableError, ConnectionError):
    """No gateway carried out the request: none answers, or what stands before it refuses for now."""

    def __init__(self, message: str, last: LastAnswer) -> None:
        super().__init__(message)
        self.retry_after = last.retry_after
        self.retryable = last.tls_fault is None and (last.status is None or last.status in _FOR_NOW)


def call(url: str | None, tool: str, arguments: Mapping[str, Any], on_piece: OnPiece | None = None) -> Any:
    """The result of one tool call. Arguments that are None are not sent; ``on_piece`` gets text while it is generated.

    Ends the command with CWM-5001 when no gateway answers, or with the tool's error code.
    """
    where, credential = base_url(url), own_credential()
    sendable = {name: value for name, value in arguments.items() if value is not None}
    try:
        json.dumps(sendable, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        fail("CWM-1003", "An argument is not valid UTF-8.", USAGE)

    pieces = 0

    def show(piece: str) -> None:
        nonlocal pieces
        pieces += 1
        assert on_piece is not None
        on_piece(piece)

    async def attempt() -> Any:
        try:
            return await call_tool(where, tool, sendable, show if on_piece else None, credential)
        except RetryableError as failed:
            # Text that was printed would be printed twice.
            failed.retryable = failed.retryable and not pieces
            raise

    return answered(attempt)


def answered(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """The result of ``attempt``, repeated as CWM_CLIENT_RETRIES says. A failure ends the command with its code."""
    retries = load_settings(upstreams=False).http.client_retries

    async def work(_: Interrupts) -> Any:
        return await repeated(attempt, retries)

    try:
        return run_to_end(work)
    except ToolRefusedError as refusal:
        fail(refusal.code, refusal.message)
    except ConnectionError as error:
        fail("CWM-5001", str(error))


def base_url(url: str | None) -> str:
    """The base URL of the gateway's paths, without a trailing slash. An invalid URL ends the command."""
    if url is None:
        return f"http://127.0.0.1:{load_settings(upstreams=False).http.port}"
    import httpx2

    # The message does not repeat the URL: it may contain a password.
    if "@" in url:
        raise typer.BadParameter("must be without a user and a password; see CWM_API_KEY", param_hint="--url")
    try:
        parsed = httpx2.URL(url)
        good = parsed.host and parsed.scheme in {"http", "https"} and (parsed.port or 0) <= _LAST_PORT
    except httpx2.InvalidURL:
        good = False
    if not good or parsed.query or parsed.fragment:
        raise typer.BadParameter("must be like http://host:port", param_hint="--url")
    return str(parsed).rstrip("/").removesuffix("/mcp")


def own_credential() -> str | None:
    """The API key or access token of CWM_API_KEY; None when it is unset."""
    key = load_settings(upstreams=False).auth.api_key
    if key is None:
        return None
    credential = key.get_secret_value().strip()
    if not (credential.isascii() and credential.isprintable()):
        fail("CWM-1003", "CWM_API_KEY must be one line of printable ASCII.", USAGE)
    return credential or None


def http_client(
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
    last: LastAnswer | None = None,
    **others: Any,
) -> httpx2.AsyncClient:
    """A client that connects to the gateway directly: a proxy from the environment would see the credential.

    ``last`` records how each request ended.
    """
    import httpx2

    from cwm.cli.gateway.transport import NotedTransport

    return httpx2.AsyncClient(
        headers=headers,
        timeout=httpx2.Timeout(30, read=300) if timeout is None else timeout,
        auth=auth,
        trust_env=False,
        transport=NotedTransport(last),
        **others,
    )


def no_answer(url: str, last: LastAnswer) -> str:
    """The message for a gateway that cannot be reached."""
    from cwm.adapters.certificates import SPEAKS_NO_TLS

    if last.tls_fault == SPEAKS_NO_TLS:
        return f"The server at {url} {SPEAKS_NO_TLS}. Give --url with http:// instead."
    if last.tls_fault is not None:
        return f"The gateway at {url} {last.tls_fault}. SSL_CERT_FILE names certificates to accept."
    return f"No CWM gateway answers at {url}. Start one with `cwm up` or `cwm serve`, or give --url."


def other_answer(url: str, status: int) -> str:
    """The message for an HTTP status that a gateway would not send."""
    if status in _NOT_OURS:
        return f"The server at {url} is no CWM gateway of this version."
    return f"The server at {url} answered with {_in_words(status)}."


def _in_words(status: int) -> str:
    import httpx2

    phrase = httpx2.codes.get_reason_phrase(status)
    return f"HTTP status {status}{phrase and f' ({phrase})'}{_MEANINGS.get(status, '')}"


async def call_tool(
    url: str,
    tool: str,
    arguments: dict[str, Any],
    on_piece: OnPiece | None = None,
    credential: str | None = None,
) -> Any:
    """Call one tool. Raises ToolRefusedError, or ConnectionError when no gateway answers."""
    import httpx2

    from cwm.cli.gateway.mcp import McpError, OtherAnswerError, ask
    from cwm.cli.gateway.transport import LastAnswer

    last = LastAnswer()
    headers = {"authorization": f"Bearer {credential}"} if credential else None
    async with AsyncExitStack() as leaving:
        try:
            http = await leaving.enter_async_context(http_client(headers, last=last))
            # What fails here was not carried out.
            await ask(http, f"{url}/mcp", "server/discover", {})
        except (OSError, httpx2.TransportError) as failed:
            raise GatewayAwayError(no_answer(url, last), last) from failed
        except (McpError, OtherAnswerError) as failed:
            _raise_refusal(failed)
            assert last.status is not None
            raise GatewayAwayError(other_answer(url, last.status), last) from failed
        try:
            called = {"name": tool, "arguments": arguments}
            result = await ask(http, f"{url}/mcp", "tools/call", called, on_piece)
        except httpx2.TransportError as failed:
            why = "the connection broke; the call may have been carried out."
            raise ConnectionError(f"The gateway at {url} did not answer {tool}: {why}") from failed
        except (McpError, OtherAnswerError) as failed:
            _raise_refusal(failed)
            assert last.status is not None
            told = f"{_in_words(last.status)}." if last.status >= _FIRST_FAULT else str(failed)
            sentence = f"The gateway at {url} did not answer {tool}: {told}"
            if last.status in _NOT_CARRIED_OUT:
                raise GatewayAwayError(sentence, last) from failed
            raise ConnectionError(sentence) from failed
    return _answer(result)


def _raise_refusal(failed: McpError | OtherAnswerError) -> None:
    """Raise ToolRefusedError when a gateway answered but refused this client."""
    data = getattr(failed, "data", None)
    if not isinstance(data, dict) or not str(data.get("code")).startswith("CWM-"):
        return
    hint = ""
    if data["code"] == "CWM-9002":
        hint = " Give CWM_API_KEY an API key (`cwm keys create`) or an access token."
    raise ToolRefusedError(data, hint) from failed


def _answer(result: Mapping[str, Any]) -> Any:
    text = "".join(str(block.get("text", "")) for block in result.get("content", ()))
    if not result.get("isError"):
        return result.get("structuredContent") or json.loads(text)
    try:
        refusal = ToolRefusedError(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError):
        why = text or "The gateway refused the call without a reason."
        refusal = ToolRefusedError({"code": "CWM-9001", "message": why})
    raise refusal
