"""``cwm engine command``: the commands and the environment of an engine, from the code that ``cwm up`` uses."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from cwm.cli.terminal.console import expected_failures, load_settings

app = typer.Typer(no_args_is_help=True, help="Start vLLM and LMCache yourself, as CWM needs them.")


@app.callback()
def group() -> None:
    """Keep the subcommand a subcommand."""


@app.command()
def command(
    model: Annotated[
        str, typer.Argument(help="A folder with weights, or a model of Hugging Face, as vLLM takes it.")
    ],
    device: Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="Instead of CWM_DEVICE.")] = None,
    form: Annotated[
        Literal["shell", "compose", "kubernetes"], typer.Option("--as", help="What to print.")
    ] = "shell",
    max_model_len: Annotated[
        int | None,
        typer.Option(min=64, help="Maximum context length in tokens, instead of CWM_MAX_MODEL_LEN."),
    ] = None,
) -> None:
    """Print how to start vLLM, LMCache, its coordinator, Valkey and `cwm room` for a model, and how a gateway finds them.

    Chunk size, sizes of the tiers and a Redis of your own come from the settings (CWM_CHUNK_SIZE, CWM_CPU_CACHE_GB, CWM_DISK_CACHE_GB,
    CWM_REDIS_CACHE_GB, CWM_REDIS_URL, CWM_TOOL_PARSER ...). The flags are those of `cwm up`. The environment of vLLM and LMCache needs the wheel `cwm-engine`.
    """
    settings = load_settings(upstreams=False, max_model_len=max_model_len)
    with expected_failures():
        from cwm.cli.engine.compose import as_compose
        from cwm.cli.engine.kubernetes import as_kubernetes
        from cwm.cli.engine.programs import engine
        from cwm.cli.engine.shell import as_shell
        from cwm.stack.models import model_elsewhere
        from cwm.stack.plan import choose_device, plan_elsewhere

        local = settings.local_engine
        plan = plan_elsewhere(settings.storage, local, device or choose_device(local.device))
        forms = {"shell": as_shell, "compose": as_compose, "kubernetes": as_kubernetes}
        print(forms[form](engine(plan, model_elsewhere(model), form)), end="")
