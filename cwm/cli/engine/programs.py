"""The programs of an engine that runs elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from cwm.stack.commands import VARIABLES, Addresses, Commands
from cwm.stack.environment import EngineEnvironment
from cwm.stack.models import Model
from cwm.stack.plan import StackPlan
from cwm.stack.ports import LOOPBACK, Ports

Form = Literal["shell", "compose", "kubernetes"]

_ENGINE_IMAGE: Final = {"cpu": "cwm-engine:cpu", "cuda": "cwm-engine:gpu"}
_GATEWAY_IMAGE: Final = "cwm:latest"
_VALKEY_IMAGE: Final = "valkey/valkey:8.1"
SECRETS: Final = Path("/run/secrets")
SERVICE: Final = "cwm-engine"
USER: Final = 10001
"""Of programs that need no root."""
_STORAGE: Final = Path("/storage")
_HUB_CACHE: Final = Path("/root/.cache/huggingface")
_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - of a container, whose network is its own
# Of `cwm up`'s own places: the wheel needs no path, and vLLM's sockets may be in its temporary folder.
_OF_CWM_UP: Final = ("PYTHONPATH", "VLLM_RPC_BASE_PATH")


@dataclass(frozen=True, slots=True)
class Program:
    """One program: ``argv``, its environment, where it answers, and the folders and secrets that it needs."""

    name: str
    argv: Sequence[str]
    image: str
    variables: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    health: str | None = None
    """The path of its health check at ``port``."""
    warm_up: Sequence[str] = ()
    """A command that succeeds once the program has answered a first request."""
    folders: Sequence[Path] = ()
    scratch: Path | None = None
    """A folder of which nothing is kept."""
    secrets: Sequence[str] = ()
    gpu: bool = False
    cache_gb: float = 0

    @property
    def all_folders(self) -> list[Path]:
        return [*self.folders, *([self.scratch] if self.scratch else [])]

    @property
    def health_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}{self.health}"

    @property
    def probe(self) -> Sequence[str]:
        """A command inside its container that succeeds once it is ready; empty if there is none."""
        if self.warm_up or not self.port:
            return self.warm_up
        if not self.health:
            return ["valkey-cli", "-p", str(self.port), "ping"]
        return ["python3", "-c", f"import urllib.request as u; u.urlopen('{self.health_url}', timeout=3)"]


@dataclass(frozen=True, slots=True)
class EnginePrograms:
    """Every program in the order in which they start, and what a gateway is told."""

    plan: StackPlan
    model: Model
    keyring: Path
    programs: Sequence[Program]
    gateway: Mapping[str, str]

    @property
    def secrets(self) -> list[str]:
        return sorted({name for program in self.programs for name in program.secrets})

    @property
    def folders(self) -> list[str]:
        return [folder.name for program in self.programs for folder in program.folders]

    @property
    def downloads(self) -> list[str]:
        """The volume for a model that vLLM downloads."""
        return [] if self.is_folder else ["model"]

    @property
    def is_folder(self) -> bool:
        """Whether the model is a folder; otherwise vLLM downloads it by its name."""
        return self.model.folder.is_absolute()

    @property
    def model_folder(self) -> Path:
        """The model's folder, or the cache of downloaded models."""
        return self.model.folder if self.is_folder else _HUB_CACHE

    def before(self, program: Program) -> Sequence[Program]:
        return self.programs[: list(self.programs).index(program)]


def engine(plan: StackPlan, model: Model, form: Form) -> EnginePrograms:
    """The programs of ``plan``; ``form`` decides how they find each other and where their files are."""
    shell = form == "shell"
    storage, secrets = (plan.storage_path, plan.storage_path) if shell else (_STORAGE, SECRETS)
    keyring = secrets / ("kv.keys" if shell else "kv_keys")
    password = secrets / "valkey_password"
    redis = plan.redis and replace(plan.redis, password=f"@{password}" if plan.redis.password else "")
    plan = replace(plan, storage_path=storage, redis=redis)
    addresses = _addresses(form)
    commands = Commands(plan, EngineEnvironment(Path()), model, Ports(), keyring, storage, addresses)
    programs = [
        *([_valkey(commands)] if redis is None else []),
        _coordinator(commands),
        _lmcache(commands, shell=shell),
        _vllm(commands),
        _room(commands, shell=shell),
    ]
    return EnginePrograms(plan, model, keyring, programs, _gateway(commands, form))


def _addresses(form: Form) -> Addresses:
    if form == "compose":
        return Addresses(_EVERYWHERE, _EVERYWHERE, "coordinator", "lmcache", "valkey-kv")
    # In one pod the parts find each other as on one machine; only gateways come from elsewhere.
    return Addresses(gateways=_EVERYWHERE) if form == "kubernetes" else Addresses()


def _valkey(commands: Commands) -> Program:
    plan = commands.plan
    return Program(
        "valkey-kv",
        ["valkey-server", *commands.valkey_options()],
        _VALKEY_IMAGE,
        port=commands.ports.valkey,
        scratch=plan.storage_path / "valkey",
        cache_gb=plan.redis_gb,
    )


def _coordinator(commands: Commands) -> Program:
    return Program(
        "coordinator",
        _python(commands.coordinator()),
        _ENGINE_IMAGE[commands.plan.device],
        _variables(VARIABLES),
        commands.ports.coordinator,
        "/healthz",
        folders=[commands.plan.storage_path / "coordinator"],
    )


def _lmcache(commands: Commands, *, shell: bool) -> Program:
    plan, arguments = commands.plan, commands.lmcache_arguments()
    if not shell and "--shm-name" in arguments:
        # A restarted container may have a new /dev/shm, while vLLM would go on with the KV of the old one.
        arguments[arguments.index("--shm-name") + 1] = ""
    return Program(
        "lmcache",
        ["python3", "-m", "cwm_engine.serve_lmcache", *arguments],
        _ENGINE_IMAGE[plan.device],
        _variables(commands.variables()),
        commands.ports.lmcache,
        "/healthcheck",
        folders=[plan.storage_path / "kv"],
        secrets=[commands.keyring.name, *(["valkey_password"] if plan.redis and plan.redis.password else [])],
        gpu=plan.device == "cuda",
        cache_gb=plan.l1_gb,
    )


def _vllm(commands: Commands) -> Program:
    variables = _variables(commands.vllm_variables())
    if not commands.model.folder.is_absolute():
        variables.pop("HF_HUB_OFFLINE")
    warm = ["python3", "-m", "cwm_engine.warm", f"http://{LOOPBACK}:{commands.ports.vllm}"]
    return Program(
        "vllm",
        _python(commands.vllm()),
        _ENGINE_IMAGE[commands.plan.device],
        variables,
        commands.ports.vllm,
        "/health",
        warm_up=[*warm, str(commands.plan.chunk_size)],
        gpu=commands.plan.device == "cuda",
    )


def _room(commands: Commands, *, shell: bool) -> Program:
    plan = commands.plan
    variables = {
        "CWM_LMCACHE_URL": f"http://{commands.addresses.lmcache}:{commands.ports.lmcache}",
        "CWM_COORDINATOR_URL": f"http://{commands.addresses.coordinator}:{commands.ports.coordinator}",
        "CWM_STORAGE_PATH": str(plan.storage_path),
        "CWM_DISK_CACHE_GB": f"{plan.disk_gb:g}",
    }
    secrets = []
    if plan.redis is None:
        variables["CWM_REDIS_URL"] = f"redis://{commands.addresses.valkey}:{commands.ports.valkey}"
    else:
        secrets = ["kv_valkey_url"]
        variables["CWM_REDIS_URL_FILE"] = str((plan.storage_path if shell else SECRETS) / secrets[0])
    folders = [plan.storage_path / "kv"]
    return Program("room", ["cwm", "room"], _GATEWAY_IMAGE, variables, folders=folders, secrets=secrets)


def _gateway(commands: Commands, form: Form) -> dict[str, str]:
    names = dict.fromkeys(("vllm", "lmcache", "coordinator"), LOOPBACK)
    if form == "compose":
        names = {name: name for name in names}
    elif form == "kubernetes":
        names = dict.fromkeys(names, SERVICE)
    ports = commands.ports.as_dict()
    return {f"CWM_{name.upper()}_URL": f"http://{host}:{ports[name]}" for name, host in names.items()}


def _python(argv: Sequence[str]) -> list[str]:
    return ["python3", *argv[1:]]


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in _OF_CWM_UP}
