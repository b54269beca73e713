"""vLLM's server, ready for agents that call tools: ``python -m cwm_engine.serve_vllm --model FOLDER ...``.

From the environment: CWM_TOOL_PARSER and CWM_REASONING_PARSER are names of vLLM's parsers, ``none``, or ``auto`` (also if
unset) for those that fit the model; CWM_CHAT_TEMPLATE is a file to use instead of the model's template; CWM_ENGINE_ARGS
are further arguments of vLLM. With ``--check`` it only says what it would do.

Stopped in order, vLLM lets answers end for ten seconds, unless ``--shutdown-timeout`` says otherwise, and cuts the others.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import runpy
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial, partialmethod
from importlib.util import find_spec
from itertools import pairwise
from multiprocessing import resource_tracker
from pathlib import Path

from cwm_engine.parsers import ModelFiles, parsers_for

_CHECK = "--check"
_SHUTDOWN = "--shutdown-timeout"
_SHUTDOWN_SECONDS = "10"
_CUT_SECONDS = 2
_MIDDLEWARE = ("cwm_engine.messages_api.MessagesApi", "cwm_engine.turn_ids.TurnIds")
_NO_TOOLS = (
    "no parser of vLLM is known to read this model's tool calls: agents that use tools will be refused. "
    "CWM_TOOL_PARSER names one"
)


def names_of(kind: str) -> Collection[str] | None:
    """The parsers that the installed vLLM has; ``kind`` is ``tool`` or ``reasoning``. None if it cannot be read.

    vLLM is not imported, which takes seconds.
    """
    spec = find_spec("vllm")
    folder = "tool_parsers" if kind == "tool" else "reasoning"
    for place in (spec.submodule_search_locations or []) if spec else []:
        try:
            module = ast.parse((Path(place) / folder / "__init__.py").read_text(encoding="utf-8"))
        except (OSError, SyntaxError):
            return None
        for node in module.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                return [key.value for key in node.value.keys if isinstance(key, ast.Constant)]  # type: ignore[misc]
    return None


def arguments_of(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], str]:
    """The arguments that vLLM gets for these, and a sentence about its parsers. Raises ValueError for a bad variable."""
    further = shlex.split(environ.get("CWM_ENGINE_ARGS", ""))
    if taken := sorted(_flags(argv) & _flags(further)):
        raise ValueError(f"CWM_ENGINE_ARGS has {', '.join(taken)}, which CWM sets itself")
    arguments = [*argv, *further]
    if template := environ.get("CWM_CHAT_TEMPLATE"):
        if not Path(template).is_file():
            raise ValueError(f"CWM_CHAT_TEMPLATE is {template}, which is no file")
        arguments += ["--chat-template", template]
    template = _value(arguments, "--chat-template")
    fitting = parsers_for(ModelFiles.read(_value(arguments, "--model"), Path(template) if template else None))
    tool, reasoning = (
        _chosen(kind, name, arguments, environ)
        for kind, name in zip(("tool", "reasoning"), fitting, strict=True)
    )
    if tool:
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", tool]
    if reasoning:
        arguments += ["--reasoning-parser", reasoning]
    if _SHUTDOWN not in _flags(arguments):
        arguments += [_SHUTDOWN, _SHUTDOWN_SECONDS]
    for each in _MIDDLEWARE:
        arguments += ["--middleware", each]
    return arguments, _sentence(arguments)


def _chosen(kind: str, fitting: str, arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    variable = f"CWM_{kind.upper()}_PARSER"
    wanted = environ.get(variable) or "auto"
    if wanted == "none" or _parser_flag(kind) in _flags(arguments):
        return ""
    known = None if f"--{kind}-parser-plugin" in _flags(arguments) else names_of(kind)
    if wanted != "auto" and known is not None and wanted not in known:
        raise ValueError(f"{variable} is {wanted}; this vLLM has {', '.join(sorted(known))}")
    return wanted if wanted != "auto" else fitting if known is None or fitting in known else ""


def _parser_flag(kind: str) -> str:
    return "--tool-call-parser" if kind == "tool" else "--reasoning-parser"


def _sentence(arguments: Sequence[str]) -> str:
    tool, reasoning = (_value(arguments, _parser_flag(kind)) for kind in ("tool", "reasoning"))
    thoughts = f", thoughts as {reasoning}" if reasoning else ""
    return f"vLLM reads tool calls as {tool}{thoughts}" if tool else _NO_TOOLS


def _flags(arguments: Sequence[str]) -> set[str]:
    return {each.partition("=")[0].replace("_", "-") for each in arguments if each.startswith("--")}


def _value(arguments: Sequence[str], flag: str) -> str:
    """What stands behind ``flag``, in either spelling; empty if it is not there."""
    for argument, after in pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        if name == flag:
            return value if equals else after
    return ""


def fork_cores() -> None:
    """Let a vLLM on CPUs fork its core from this process.

    It would start core and worker as new programs, which import vLLM one after the other: 10 s each on two cores. Only
    a worker needs that, because variables bind its OpenMP threads. On GPUs nothing changes: CUDA bears no fork.
    """
    try:
        from vllm.platforms import current_platform
        from vllm.v1.engine import utils
    except ImportError:
        return
    if current_platform.is_cpu():
        # One of the core's own would be killed with it, and leave its shared memory behind.
        resource_tracker.ensure_running()
        utils.get_mp_context = partial(multiprocessing.get_context, "fork")


def cut_answers_of_a_stopped_engine() -> None:
    """Its server would wait for their end without a limit, but of an engine that has stopped nothing comes any more."""
    try:
        from uvicorn import Config
    except ImportError:
        return
    Config.__init__ = partialmethod(Config.__init__, timeout_graceful_shutdown=_CUT_SECONDS)


def main() -> None:
    """Run vLLM's server with the arguments of this process."""
    argv = [each for each in sys.argv[1:] if each != _CHECK]
    try:
        arguments, sentence = arguments_of(argv, os.environ)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    print(sentence, flush=True)
    if _CHECK not in sys.argv:
        sys.argv[1:] = arguments
        fork_cores()
        cut_answers_of_a_stopped_engine()
        # As ``python -m`` would, but a worker imports the main module again, and this one is small.
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")


if __name__ == "__main__":
    main()
