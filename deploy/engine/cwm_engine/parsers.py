"""Which of vLLM's parsers read a model's tool calls and thoughts: the model's files tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_THOUGHT = "<think>"
_PROMPT = "add_generation_prompt"


@dataclass(frozen=True)
class ModelFiles:
    """``kind`` is the ``model_type`` of config.json; ``template`` the chat template; ``tokenizer`` tokenizer.json as text."""

    kind: str
    template: str
    tokenizer: str

    @classmethod
    def read(cls, model: str, template: Path | None = None) -> ModelFiles:
        """The files of ``model``, a folder or a name at Hugging Face; ``template`` is used instead of its own. A missing one is empty."""
        if _file(model, "tekken.json"):
            return cls("mistral", "[TOOL_CALLS]", "")
        own = _own_template(model) if template is None else template.read_text(encoding="utf-8")
        kind = _object(_file(model, "config.json")).get("model_type")
        return cls(str(kind or ""), own, _file(model, "tokenizer.json"))

    def has_token(self, token: str) -> bool:
        return json.dumps(token, ensure_ascii=False) in self.tokenizer


@dataclass(frozen=True)
class _Family:
    """``marks`` are in its chat template. ``tokens`` are in its tokenizer, or the parser ends vLLM. ``kinds``: any if empty.

    ``reasoning`` applies if ``thinks`` is in the template.
    """

    tool: str
    marks: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    reasoning: str = ""
    thinks: str = ""

    def fits(self, files: ModelFiles) -> bool:
        return (
            (not self.kinds or files.kind in self.kinds)
            and all(mark in files.template for mark in self.marks)
            and all(files.has_token(token) for token in self.tokens)
        )


# The first that fits. As in the recipes and the documentation of vLLM 0.32.
_DEEPSEEK_CALLS = "<｜tool▁calls▁begin｜>"
_FAMILIES = (
    _Family("openai", kinds=("gpt_oss",), reasoning="openai_gptoss"),
    _Family("deepseek_v4", kinds=("deepseek_v4",), reasoning="deepseek_v4"),
    _Family("deepseek_v32", kinds=("deepseek_v32",), reasoning="deepseek_v3"),
    _Family("llama4_pythonic", kinds=("llama4",)),
    _Family("gemma4", kinds=("gemma4",), reasoning="gemma4"),
    _Family("granite4", kinds=("granitemoehybrid",)),
    _Family("granite", ("<|tool_call|>",), kinds=("granite", "granitemoe")),
    _Family("qwen3_coder", ("<function=",), kinds=("nemotron_h",), reasoning="nemotron_v3"),
    _Family("step3p5", kinds=("step3p5",), reasoning="step3p5"),
    _Family("olmo3", ("<function_calls>",), kinds=("olmo3",)),
    _Family("phi4_mini_json", ("<|tool|>",), kinds=("phi3",)),
    _Family("internlm", ("<|plugin|>",), kinds=("internlm2",)),
    _Family("minimax_m2", ("<minimax:tool_call>",), reasoning="minimax_m2"),
    _Family("seed_oss", ("<seed:tool_call>",)),
    _Family("kimi_k2", ("<|tool_calls_section_begin|>",), reasoning="kimi_k2", thinks=_THOUGHT),
    _Family("lfm2", ("<|tool_call_start|>",), tokens=("<|tool_call_start|>",)),
    _Family("deepseek_v3", (_DEEPSEEK_CALLS, "```json"), tokens=(_DEEPSEEK_CALLS,)),
    _Family("deepseek_v31", (_DEEPSEEK_CALLS,), tokens=(_DEEPSEEK_CALLS,), reasoning="deepseek_v3"),
    _Family("mistral", ("[TOOL_CALLS]",), reasoning="mistral", thinks="[THINK]"),
    _Family("llama3_json", ("ipython",), tokens=("<|python_tag|>",)),
    _Family("glm45", ("<tool_call>", "<arg_key>"), reasoning="glm45"),
    _Family("qwen3_coder", ("<tool_call>", "<function=")),
    _Family("hermes", ("<tool_call>",)),
    # ChatML whose template shows the model no tools: most that learned calls in it write them as Hermes does.
    _Family("hermes", ("<|im_start|>",)),
)


def parsers_for(files: ModelFiles) -> tuple[str, str]:
    """The names of the tool parser and of the reasoning parser; empty where none is known to fit."""
    family = next((each for each in _FAMILIES if each.fits(files)), _Family(""))
    if family.reasoning and family.thinks in files.template:
        return family.tool, family.reasoning
    return family.tool, _thoughts_in_tags(files)


def _thoughts_in_tags(files: ModelFiles) -> str:
    """Of a model whose answers begin in a thought: a parser of thoughts hides the answers of any other."""
    opening = files.template.rpartition(_PROMPT)[2] if _PROMPT in files.template else ""
    if _THOUGHT not in opening or not files.has_token(_THOUGHT):
        return ""
    return "qwen3" if "enable_thinking" in opening else "deepseek_r1"


def _own_template(model: str) -> str:
    if text := _file(model, "chat_template.jinja"):
        return text
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = _object(_file(model, name)).get("chat_template")
        if isinstance(template, list):
            by_name = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
            template = by_name.get("tool_use") or by_name.get("default")
        if isinstance(template, str):
            return template
    return ""


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _file(model: str, name: str) -> str:
    try:
        path = Path(model) / name if Path(model).is_dir() else Path(_download()(model, name))
        return path.read_text(encoding="utf-8")
    except Exception:  # noqa: BLE001 - the hub has many of its own; vLLM says what it misses
        return ""


def _download() -> Callable[[str, str], str]:
    from huggingface_hub import hf_hub_download

    return hf_hub_download  # type: ignore[no-any-return]
