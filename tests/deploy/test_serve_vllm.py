"""How vLLM is started for agents: which parsers fit a model, told from its files, and what the variables change."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from cwm import shipped

pytestmark = pytest.mark.slow

# What the installed vLLM registers: the first dictionary of each package.
PARSERS = '__all__ = ["Manager"]\n_TO_REGISTER = {{\n    {rows},\n}}\nraise SystemExit("vLLM must not be imported")\n'
TOOLS = (
    "hermes", "openai", "qwen3_coder", "llama3_json", "mistral", "deepseek_v3", "deepseek_v31", "glm45", "kimi_k2",
)  # fmt: skip
REASONING = ("qwen3", "deepseek_r1", "deepseek_v3", "openai_gptoss", "glm45", "kimi_k2", "mistral")
HERMES = "{% if tools %}<tools>{{ tools }}</tools> <tool_call>{{ call }}</tool_call>{% endif %}"
ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TOGGLES = "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>{% endif %}{% endif %}"
THINKS = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
CALLS = "<｜tool▁calls▁begin｜>"


@dataclass(frozen=True)
class Machine:
    """A model's folder and an environment in which vLLM is installed."""

    folder: Path

    def model(self, template: str, kind: str = "llama", tokens: tuple[str, ...] = ()) -> None:
        vocabulary = [{"content": token, "special": True} for token in tokens]
        self._write("model/config.json", json.dumps({"model_type": kind}))
        self._write("model/chat_template.jinja", template)
        self._write(
            "model/tokenizer.json", json.dumps({"added_tokens": vocabulary}, ensure_ascii=False, indent=2)
        )

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def starts(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """vLLM's stand-in prints its arguments."""
        command = [
            sys.executable,
            "-m",
            "cwm_engine.serve_vllm",
            "--model",
            str(self.folder / "model"),
            *arguments,
        ]
        path = f"{shipped.folder('engine')}:{self.folder}"
        return subprocess.run(
            command,
            env={"PYTHONPATH": path, **variables}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def flags(self, *arguments: str, **variables: str) -> dict[str, str]:
        """The flags that vLLM gets beside its model, with their values."""
        run = self.starts(*arguments, **variables)
        assert run.returncode == 0, run.stderr
        words = json.loads(run.stdout.splitlines()[-1])[2:]
        following = pairwise([*words, "--"])
        return {
            word: "" if after.startswith("--") else after
            for word, after in following
            if word.startswith("--")
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    for package, names in (("tool_parsers", TOOLS), ("reasoning", REASONING)):
        rows = ", ".join(f'"{name}": ("{name}_parser", "Parser")' for name in names)
        machine._write(f"vllm/{package}/__init__.py", PARSERS.format(rows=rows))
    for package in ("vllm", "vllm/entrypoints", "vllm/entrypoints/openai"):
        machine._write(f"{package}/__init__.py", "")
    machine._write(
        "vllm/entrypoints/openai/api_server.py", "import json, sys\nprint(json.dumps(sys.argv[1:]))"
    )
    machine.model(HERMES + ASKS)
    return machine


@pytest.mark.parametrize(
    ("kind", "template", "tokens", "tool", "reasoning"),
    [
        ("qwen2", HERMES + ASKS, (), "hermes", None),
        ("qwen3", HERMES + TOGGLES, ("<think>",), "hermes", "qwen3"),
        ("qwen3_moe", HERMES + THINKS, ("<think>",), "hermes", "deepseek_r1"),
        ("qwen3_moe", HERMES + "<function=name>" + ASKS, ("<think>",), "qwen3_coder", None),
        ("qwen3_5", HERMES + "<function=name>" + TOGGLES, ("<think>",), "qwen3_coder", "qwen3"),
        ("llama", "<|im_start|>{{ content }}<|im_end|>" + ASKS, (), "hermes", None),
        ("llama", "<|start_header_id|>ipython<|end_header_id|>", ("<|python_tag|>",), "llama3_json", None),
        ("mistral", "[TOOL_CALLS] [/INST]", (), "mistral", None),
        ("mistral3", "[TOOL_CALLS] [THINK]", (), "mistral", "mistral"),
        ("gpt_oss", "<|channel|>analysis", (), "openai", "openai_gptoss"),
        ("deepseek_v3", CALLS + "```json" + THINKS, (CALLS, "<think>"), "deepseek_v3", "deepseek_r1"),
        ("deepseek_v3", CALLS + ASKS, (CALLS,), "deepseek_v31", "deepseek_v3"),
        ("qwen2", CALLS + "```json" + THINKS.replace("<|im_start|>", ""), ("<think>",), None, "deepseek_r1"),
        ("glm4_moe", "<tool_call>name\n<arg_key>" + ASKS, (), "glm45", "glm45"),
        ("kimi_k2", "<|tool_calls_section_begin|>", (), "kimi_k2", None),
        ("kimi_k2", "<|tool_calls_section_begin|><think></think>", (), "kimi_k2", "kimi_k2"),
        ("gpt2", "{{ messages }}", (), None, None),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)  # fmt: skip
def test_a_model_gets_the_parsers_of_its_family(
    machine: Machine,
    kind: str,
    template: str,
    tokens: tuple[str, ...],
    tool: str | None,
    reasoning: str | None,
) -> None:
    machine.model(template, kind, tokens)
    flags = machine.flags()

    assert flags.get("--tool-call-parser") == tool
    assert ("--enable-auto-tool-choice" in flags) is (tool is not None)
    assert flags.get("--reasoning-parser") == reasoning


def test_the_template_for_tools_counts_where_a_model_has_several(machine: Machine) -> None:
    templates = [{"name": "default", "template": ASKS}, {"name": "tool_use", "template": HERMES}]
    (machine.folder / "model/chat_template.jinja").unlink()
    machine._write("model/tokenizer_config.json", json.dumps({"chat_template": templates}))
    assert machine.flags()["--tool-call-parser"] == "hermes"


def test_a_model_in_mistrals_own_format_needs_no_template(machine: Machine) -> None:
    machine._write("model/tekken.json", "{}")
    assert machine.flags()["--tool-call-parser"] == "mistral"


def test_variables_replace_what_fits(machine: Machine) -> None:
    flags = machine.flags(CWM_TOOL_PARSER="mistral", CWM_REASONING_PARSER="qwen3")
    assert (flags["--tool-call-parser"], flags["--reasoning-parser"]) == ("mistral", "qwen3")
    assert machine.flags(CWM_TOOL_PARSER="none").keys() == {"--middleware", "--shutdown-timeout"}


def test_another_chat_template_is_used_and_decides_what_fits(machine: Machine, tmp_path: Path) -> None:
    template = tmp_path / "glm.jinja"
    template.write_text("<tool_call><arg_key>")
    for flags in (
        machine.flags(CWM_CHAT_TEMPLATE=str(template)),
        machine.flags("--chat-template", str(template)),
    ):
        assert (flags["--chat-template"], flags["--tool-call-parser"]) == (str(template), "glm45")


def test_further_arguments_are_added_and_a_parser_among_them_is_the_one(machine: Machine) -> None:
    flags = machine.flags("--port", "8000", CWM_ENGINE_ARGS="--tool-call-parser mistral --seed '1 2'")
    assert flags == {
        "--port": "8000",
        "--tool-call-parser": "mistral",
        "--seed": "1 2",
        "--middleware": "cwm_engine.turn_ids.TurnIds",
        "--shutdown-timeout": "10",
    }


def test_how_long_answers_may_end_is_the_users_to_say(machine: Machine) -> None:
    assert machine.flags()["--shutdown-timeout"] == "10"
    assert machine.flags("--shutdown-timeout", "60")["--shutdown-timeout"] == "60"
    assert machine.flags(CWM_ENGINE_ARGS="--shutdown-timeout 0")["--shutdown-timeout"] == "0"


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"CWM_TOOL_PARSER": "hermess"}, "CWM_TOOL_PARSER is hermess; this vLLM has deepseek_v3, "),
        ({"CWM_REASONING_PARSER": "deep"}, "CWM_REASONING_PARSER is deep; this vLLM has deepseek_r1, "),
        ({"CWM_CHAT_TEMPLATE": "/nowhere.jinja"}, "CWM_CHAT_TEMPLATE is /nowhere.jinja, which is no file"),
        ({"CWM_ENGINE_ARGS": "--block_size=16"}, "CWM_ENGINE_ARGS has --block-size, which CWM sets itself"),
    ],
)
def test_a_bad_variable_ends_the_start_before_vllm_is_loaded(
    machine: Machine, variables: dict[str, str], why: str
) -> None:
    run = machine.starts("--block-size", "64", **variables)
    assert run.returncode == 1
    assert run.stderr.startswith(why)
    assert run.stdout == ""


def test_a_parser_of_a_plugin_is_not_looked_up(machine: Machine) -> None:
    flags = machine.flags(CWM_TOOL_PARSER="ours", CWM_ENGINE_ARGS="--tool-parser-plugin /plugin.py")
    assert flags["--tool-call-parser"] == "ours"


def test_a_check_says_what_agents_meet_and_starts_nothing(machine: Machine) -> None:
    machine.model(HERMES + TOGGLES, "qwen3", ("<think>",))
    assert machine.starts("--check").stdout == "vLLM reads tool calls as hermes, thoughts as qwen3\n"
    assert "agents that use tools will be refused" in machine.starts("--check", CWM_TOOL_PARSER="none").stdout


@pytest.mark.parametrize(("is_cpu", "method"), [(True, "fork"), (False, "spawn")])
def test_a_core_on_cpus_is_forked_and_imports_nothing_again(
    machine: Machine, is_cpu: bool, method: str
) -> None:
    for package in ("vllm/v1", "vllm/v1/engine"):
        machine._write(f"{package}/__init__.py", "")
    machine._write(
        "vllm/platforms.py",
        f"class current_platform:\n    @staticmethod\n    def is_cpu() -> bool:\n        return {is_cpu}",
    )
    machine._write(
        "vllm/v1/engine/utils.py",
        "import multiprocessing\ndef get_mp_context():\n    return multiprocessing.get_context('spawn')",
    )
    machine._write(
        "vllm/entrypoints/openai/api_server.py",
        "from vllm.v1.engine import utils\nprint(utils.get_mp_context().get_start_method())",
    )
    assert machine.starts().stdout.splitlines()[-1] == method
