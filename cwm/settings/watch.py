"""Hot reload: reads a changed ``cwm.yaml``, validates it as a whole, and applies it while the gateway runs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import structlog
from watchfiles import awatch

from cwm.settings.changes import SettingChange, changes_between
from cwm.settings.fields import Group, SettingsError
from cwm.settings.groups import GROUPS, Settings
from cwm.settings.load import read_file, settings_from
from cwm.settings.telling import Logging

Apply: TypeAlias = Callable[[Settings], Awaitable[None]]
OnOutcome: TypeAlias = Callable[["ReloadOutcome", Sequence[SettingChange]], Awaitable[None]]
_Folder: TypeAlias = tuple[str, int, int]
"""Path, device and inode."""
_Stamp: TypeAlias = tuple[int, int] | None
"""Inode and time of the last change in nanoseconds of a file; None if there is none."""

_LOG_LEVEL: Final = "logging.log_level"
_LIVE_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "context": ("context_memory_mb", "context_eviction"),
    "limits": (
        "rate_limit_session",
        "rate_limit_principal",
        "rate_limit_tenant",
        "rate_limit_lists",
        "concurrent_principal",
        "concurrent_tenant",
        "streams_principal",
        "token_budget_principal",
        "token_budget_tenant",
        "stored_principal_gb",
        "stored_tenant_gb",
    ),
}
_LIVE: Final = frozenset(
    {_LOG_LEVEL, *(f"{group}.{name}" for group, names in _LIVE_FIELDS.items() for name in names)}
)

# watchfiles polls every step and reports once a step brought nothing new: 5 to 10 ms after a write. Polling this often
# does not show in the processor time of an idle gateway.
_STEP_MS: Final = 5
_MOST_MS: Final = 40
# The file is also read at this interval: some file systems report no changes, and folders come and go.
_LOOK_SECONDS: Final = 0.5
# A file modified this recently may be half written.
_SETTLED_SECONDS: Final = 0.01
_MOST_WAITS: Final = 20

_log = structlog.get_logger("cwm.settings")


class ReloadOutcome(StrEnum):
    """What happened to a changed file."""

    APPLIED = "applied"
    REFUSED = "refused"
    FAILED = "failed"
    WAITS = "waits"
    """Settings changed that need a restart."""


async def watch(
    current: Settings,
    apply: Apply,
    *,
    environ: Mapping[str, str],
    config: Path,
    on_outcome: OnOutcome,
) -> None:
    """Call ``apply`` with a new snapshot whenever ``config`` changes; runs until cancelled.

    Only settings that can change while the gateway runs are new in the snapshot: upstreams, budgets and tool
    policies, automatic windows, what is kept, limits, the log level, and the memory limit and eviction policy of shared context. Other changed
    settings are named in the log. An invalid, missing or emptied file changes nothing. ``on_outcome`` is awaited with
    the outcome of each changed file, and with what it changed.
    """
    reload = _Reload(current, apply, environ, config, on_outcome)
    warned = False
    while True:
        folders = await asyncio.to_thread(_folders, config)
        try:
            await _look_on_changes(reload, config, folders)
        except (OSError, RuntimeError) as error:
            if not warned:
                _log.warning("settings_watched_slowly", why=str(error), every_seconds=_LOOK_SECONDS)
            warned = True
            await reload.look()
            await asyncio.sleep(_LOOK_SECONDS)


async def _look_on_changes(reload: _Reload, config: Path, folders: frozenset[_Folder]) -> None:
    """Returns when the set of folders to watch has changed."""
    changes = awatch(
        *(path for path, _, _ in folders),
        watch_filter=None,
        recursive=False,
        debounce=_MOST_MS,
        step=_STEP_MS,
        rust_timeout=round(_LOOK_SECONDS * 1000),
        yield_on_timeout=True,
    )
    async with aclosing(changes):
        async for _ in changes:
            await reload.look()
            if await asyncio.to_thread(_folders, config) != folders:
                return


@dataclass(slots=True, repr=False)
class _Reload:
    """The content last read, and the settings in force."""

    current: Settings
    apply: Apply
    environ: Mapping[str, str]
    config: Path
    on_outcome: OnOutcome
    _started: Mapping[str, Group] = field(init=False)
    _level: str = field(init=False)
    _content: bytes | str | None = None
    _stamps: tuple[_Stamp, ...] = ()
    _was_empty: bool | None = None
    _in_step: bool = True
    _refusal: str = ""
    _applied: bool = True
    _waiting: list[SettingChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        reading = self.current.reading
        self._started = reading.groups if reading else {name: getattr(self.current, name) for name in GROUPS}
        self._level = cast("Logging", self._started["logging"]).log_level

    async def look(self) -> None:
        """Read the file, and apply it if its content has changed, or that of a file with a key or a certificate."""
        content, stamps = await self._read(), _stamps(self.current)
        is_same = content == self._content and stamps == self._stamps
        # What was refused is read again: a file that it names may be there now.
        if is_same and not self._refusal:
            return
        self._content, self._stamps = content, stamps
        try:
            if content is None:
                raise SettingsError(f"{self.config} is gone.")
            if isinstance(content, str):
                raise SettingsError(content)
            new = await asyncio.to_thread(settings_from, content, self.environ, self.config)
            self._refuse_if_emptied(content, new)
        except SettingsError as why:
            self._in_step = False
            if is_same and str(why) == self._refusal:
                return
            self._refusal = str(why)
            await self.on_outcome(ReloadOutcome.REFUSED, [])
            _log.error("settings_refused", why=str(why), in_force="the settings read before")
            return
        self._refusal = ""
        await self._swap(self._with_live(new))
        await self._name_what_waits(new)

    def _refuse_if_emptied(self, content: bytes, new: Settings) -> None:
        """Some editors empty a file before they write it: that moment must not end all upstreams."""
        empty = not content.strip()
        if empty and self._was_empty is None:
            groups = {title: getattr(new, title) for title in self._started}
            at_start = (self._started, *_file_alone(self.current))
            self._was_empty = (groups, *_file_alone(new)) == at_start
        if empty and not self._was_empty:
            raise SettingsError(f"{self.config} is empty; to have no upstreams write `upstreams: {{}}`.")
        self._was_empty = empty

    async def _read(self) -> bytes | str | None:
        """The content of the settled file, or a sentence that says why it cannot be read; None when it is gone."""
        raw: bytes | None = None
        try:
            for _ in range(_MOST_WAITS):
                raw = await asyncio.to_thread(read_file, self.config)
                if raw == self._content or _settled(self.config):
                    break
                await asyncio.sleep(_SETTLED_SECONDS)
        except SettingsError as why:
            return str(why)
        return raw

    def _with_live(self, new: Settings) -> Settings:
        """The settings in force, with the changed live settings.

        A log level set by a flag stays until the file's own changes.
        """
        logging = self.current.logging
        if new.logging.log_level != self._level:
            logging = logging.model_copy(update={"log_level": new.logging.log_level})
        self._level = new.logging.log_level
        live: dict[str, Any] = {
            title: getattr(self.current, title).model_copy(
                update={name: getattr(getattr(new, title), name) for name in names}
            )
            for title, names in _LIVE_FIELDS.items()
        }
        return replace(
            self.current,
            engines=self.current.engines if self.current.starts_engines else new.engines,
            upstreams=new.upstreams,
            budgets=new.budgets,
            autosave=new.autosave,
            aliases=new.aliases,
            capture=new.capture,
            keep=new.keep,
            repairs=new.repairs,
            logging=logging,
            **live,
        )

    async def _swap(self, new: Settings) -> None:
        old, self.current = self.current, new
        changes, was_in_step, self._in_step = changes_between(old, new, sorted(_LIVE)), self._in_step, True
        changed = [change.name for change in changes]
        if not changed and self._applied:
            if not was_in_step:
                _log.info("settings_good_again", changed=[])
            return
        try:
            await self.apply(new)
        except Exception:  # noqa: BLE001 - whatever it is, the watch goes on
            self._applied = False
            await self.on_outcome(ReloadOutcome.FAILED, changes)
            _log.exception("settings_not_applied", changed=changed)
            return
        self._applied = True
        await self.on_outcome(ReloadOutcome.APPLIED, changes)
        _log.info("settings_applied", changed=changed, **_values(changes))

    async def _name_what_waits(self, new: Settings) -> None:
        names = [
            f"{title}.{name}"
            for title, group in self._started.items()
            for name in type(group).model_fields
            if f"{title}.{name}" not in _LIVE
        ]
        # Of the live settings new ones count: they were applied before.
        groups: dict[str, Any] = dict(self._started)
        started = replace(new, **groups)
        waiting = changes_between(started, new, names)
        if waiting and waiting != self._waiting:
            _log.warning(
                "settings_changed",
                settings=[change.name for change in waiting],
                do="restart to apply",
                **_values(waiting),
            )
            await self.on_outcome(ReloadOutcome.WAITS, waiting)
        self._waiting = waiting


def _values(changes: Sequence[SettingChange]) -> dict[str, dict[str, str]]:
    return {
        "before": {change.name: change.before for change in changes},
        "after": {change.name: change.after for change in changes},
    }


def _file_alone(settings: Settings) -> tuple[object, ...]:
    """What no environment variable sets."""
    return (
        {} if settings.starts_engines else settings.engines,
        settings.upstreams,
        settings.budgets,
        settings.autosave,
        settings.keep,
        settings.aliases,
        settings.capture,
        settings.repairs,
    )


def _stamps(settings: Settings) -> tuple[_Stamp, ...]:
    """Of the files that engines' keys and certificates come from."""
    stamps: list[_Stamp] = []
    for path in (path for engine in settings.engines.values() for path in engine.files):
        try:
            status = path.stat()
            stamps.append((status.st_ino, status.st_mtime_ns))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def _settled(config: Path) -> bool:
    try:
        age = time.time() - config.stat().st_mtime
    except OSError:
        return True
    return not 0 <= age < _SETTLED_SECONDS


def _folders(config: Path) -> frozenset[_Folder]:
    """The folders in which a change of ``config`` shows: its own, and that of the file that it links to."""
    real = Path(os.path.realpath(config))
    return frozenset({_nearest(config.absolute().parent), _nearest(real.parent)})


def _nearest(folder: Path) -> _Folder:
    """``folder``, or the nearest folder above it that exists."""
    for each in (folder, *folder.parents):
        with suppress(OSError):
            status = each.stat()
            return str(each), status.st_dev, status.st_ino
    return str(folder), 0, 0
