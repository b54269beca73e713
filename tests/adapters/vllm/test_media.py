"""From where an engine may fetch the media of a message."""

from __future__ import annotations

from typing import Any

import pytest

from cwm.adapters.vllm.media import MediaRule
from cwm.domain.errors import InvalidParameterError

RULE = MediaRule()


def said(part: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "text"}, {"role": "user", "content": [{"type": "text"}, part]}]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/x",
        "http://localhost/x",
        "http://localhost./x",
        "HTTP://[::1]/x",
        "http://[::ffff:10.0.0.1]/x",
        "http://[64:ff9b::a9fe:a9fe]/x",
        "http://10.1.2.3/x",
        "https://192.168.0.9/x",
        "http://169.254.169.254/latest",
        "http://100.100.100.200/x",
        "http://168.63.129.16/x",
        "http://metadata.google.internal/x",
        "http://2130706433/x",
        "http://0x7f.1/x",
        "http://0/x",
        "http://224.0.0.1/x",
        "http://93.184.215.14@127.0.0.1/x",
        "http://93.184.215.14\\@127.0.0.1/x",
        "http://93.184.215.14\n/x",
        "http://no-such-host.invalid/x",
        "http:///x",
        "file:///etc/passwd",
        "ftp://93.184.215.14/x",
        "//127.0.0.1/x",
        "http://[::1/x",
    ],
)
@pytest.mark.parametrize(
    "shape",
    [
        lambda url: {"type": "image_url", "image_url": {"url": url}},
        lambda url: {"type": "audio_url", "audio_url": {"url": url}},
        lambda url: {"type": "video_url", "video_url": {"url": url}},
        lambda url: {"type": "input_image", "image_url": url},
        lambda url: {"image_url": url},
    ],
)
async def test_no_message_sends_the_engine_to_an_address_of_its_own_network(url: str, shape: Any) -> None:
    with pytest.raises(InvalidParameterError, match="CWM_PRIVATE_MEDIA") as refused:
        await RULE.require(said(shape(url)))
    assert refused.value.context == {"field": "messages", "setting": "CWM_PRIVATE_MEDIA"}
    await MediaRule(private=True).require(said(shape(url)))


@pytest.mark.parametrize("url", ["https://93.184.215.14/a.png", "data:image/png;base64,AAAA", "DATA:,x"])
async def test_public_and_inline_media_pass(url: str) -> None:
    await RULE.require(said({"type": "image_url", "image_url": {"url": url}}))


@pytest.mark.parametrize(
    "messages", [None, "text", [], [None], [{"content": None}], [{"content": [1, {"image_url": None}]}]]
)
async def test_what_holds_no_media_passes(messages: Any) -> None:
    await RULE.require(messages)
