"""Texts of the kinds that tools return, of any length and the same every time."""

from __future__ import annotations

import base64
import inspect
import json
import random
import typing
import unittest.mock
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pydoc_data import topics
from types import MappingProxyType, ModuleType
from typing import Any, Final

_CHINESE: Final = (
    "网关把一个团队的所有代理连接到同一个地址，并记录每次会话的完整上下文。",
    "如果工具返回的结果太长，系统会先把它完整地保存下来，再交给代理一份简短的预览。",
    "第二天早上，工程师发现缓存的命中率从百分之六十二上升到了百分之九十一。",
    "请在部署之前检查数据库的版本、磁盘的剩余空间以及证书的有效期。",
    "他说：“这座桥修了三年，终于可以通车了。”大家都很高兴。",
    "该接口每分钟最多允许一千二百次请求，超过限制时返回错误代码四二九。",
)
_JAPANESE: Final = (
    "このサーバーは複数のエージェントが読んだ内容を共有し、同じファイルを二度読まないようにします。",
    "昨日の会議では、来月のリリース日と担当者について話し合いました。",
    "メモリが足りない場合は、優先度の低いデータから順番に削除されます。",
    "駅前の小さな喫茶店で、雨が止むのを待ちながら本を読んでいた。",
    "エラーが発生しましたので、しばらくしてからもう一度お試しください。",
)
_KOREAN: Final = (
    "이 도구는 결과가 너무 길면 전체를 저장한 뒤에 짧은 미리보기를 돌려줍니다.",
    "지난주에 배포한 버전에서 응답 시간이 절반으로 줄었습니다.",
    "비밀번호는 열두 자 이상이어야 하며 숫자와 기호를 포함해야 합니다.",
    "바람이 많이 부는 날에는 강가를 따라 걷는 사람이 거의 없다.",
)
_CITIES: Final = ("Lisbon", "Osaka", "Kraków", "São Paulo", "Nairobi", "Tromsø", "Hà Nội", "Winnipeg")
_WORDS: Final = ("pump", "valve", "ledger", "harbour", "orchid", "copper", "signal", "meadow", "turbine")
_PATHS: Final = ("/api/v1/orders", "/healthz", "/static/app.js", "/login", "/api/v2/users/self")


def text(kind: str, chars: int, seed: int = 0) -> str:
    """``chars`` characters of the ``kind``, a key of ``KINDS``."""
    parts: list[str] = []
    remainder = chars
    for part in KINDS[kind](random.Random(f"{kind} {seed}")):  # noqa: S311 - repeatable, not secret
        parts.append(part)
        remainder -= len(part)
        if remainder <= 0:
            break
    return "".join(parts)[:chars]


def _prose(r: random.Random) -> Iterator[str]:
    """Random topics of Python's reference manual."""
    names = sorted(topics.topics)
    while True:
        yield topics.topics[r.choice(names)]


def _code(r: random.Random) -> Iterator[str]:
    modules: tuple[ModuleType, ...] = (inspect, json, random, typing, unittest.mock, base64)
    while True:
        lines = inspect.getsource(r.choice(modules)).splitlines(keepends=True)
        yield "".join(lines[r.randrange(len(lines)) :][:400])


def _record(r: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "uuid": f"{r.getrandbits(128):032x}",
        "name": " ".join(r.choices(_WORDS, k=3)),
        "city": r.choice(_CITIES),
        "price": round(r.uniform(1, 5000), 2),
        "in_stock": r.random() < 0.7,
        "tags": r.sample(_WORDS, r.randrange(4)),
        "owner": {"email": f"{r.choice(_WORDS)}{r.randrange(999)}@example.org", "since": None},
    }


def _json(r: random.Random) -> Iterator[str]:
    yield "["
    for number in count():
        yield json.dumps(_record(r, number), ensure_ascii=False, separators=(",", ":")) + ","


def _indented_json(r: random.Random) -> Iterator[str]:
    yield "[\n"
    for number in count():
        yield json.dumps(_record(r, number), indent=2) + ",\n"


def _cjk(r: random.Random) -> Iterator[str]:
    while True:
        for language in (_CHINESE, _JAPANESE, _KOREAN):
            yield "".join(r.choices(language, k=20)) + "\n"


def _base64(r: random.Random) -> Iterator[str]:
    while True:
        yield base64.b64encode(r.randbytes(3000)).decode()


def _numbers(r: random.Random) -> Iterator[str]:
    for second in count(1_700_000_000):
        yield f"{second},{r.gauss(20, 5):.3f},{r.uniform(0, 1):.6f},{r.randrange(-4000, 4000)},{r.random():e}\n"


def _logs(r: random.Random) -> Iterator[str]:
    for number in count():
        at = f"2026-03-{number // 86_400 % 28 + 1:02d}T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
        yield f"{at} INFO  worker-{r.randrange(8)} {r.choice(_PATHS)} {r.choice((200, 200, 304, 404))} {r.random() * 90:.1f}ms\n"
        if r.random() < 0.01:
            yield f"{at} ERROR worker-{r.randrange(8)} request {r.getrandbits(64):016x} failed\nTraceback (most recent call last):\n"
            yield f'  File "/srv/app/{r.choice(_WORDS)}.py", line {r.randrange(900)}, in handle\n    raise TimeoutError\n'


def _mixed(r: random.Random) -> Iterator[str]:
    """Like a mailbox export: prose between attachments of any size, tables and logs."""
    streams = [KINDS[kind](r) for kind in ("prose", "cjk", "base64", "numbers", "logs", "json")]
    while True:
        stream = r.choice(streams)
        for _ in range(r.randrange(1, 30)):
            yield next(stream)


def _spaced(r: random.Random) -> Iterator[str]:
    """A report padded with rules and white space."""
    while True:
        yield f"{r.choice(_WORDS):<{r.randrange(20, 400)}}|{r.uniform(0, 1e6):>20.2f}\n"
        if r.random() < 0.1:
            yield "=" * r.randrange(40, 400) + "\n"


KINDS: Final[Mapping[str, Callable[[random.Random], Iterator[str]]]] = MappingProxyType(
    {
        "prose": _prose,
        "code": _code,
        "json": _json,
        "indented json": _indented_json,
        "cjk": _cjk,
        "base64": _base64,
        "numbers": _numbers,
        "logs": _logs,
        "padded": _spaced,
        "mixed": _mixed,
    }
)
