"""Settings of the hook: environment, then a TOML file, then vLLM's `additional_config` for two harmless keys.

vLLM logs `additional_config` and hashes it into its compile cache, so addresses and secrets never come from there.
"""

from __future__ import annotations

import re
import socket
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from acceptd.errors import ConfigError
from acceptd.identity import FILES, Identity, variable
from acceptd.limits import MAX_NAME_BYTES, MAX_WORKER_BYTES, MAX_WORKLOAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Environment variable that names the TOML file.
CONFIG_FILE: Final = "ACCEPTD_HOOK_CONFIG"

#: Keys that `--additional-config '{"acceptd": {…}}'` may set.
ADDITIONAL_KEYS: Final = ("enabled", "workload")

FEATURES: Final = ("x", "full")


def _setting(default: Any, meaning: str) -> Any:
    """A field whose `meaning` docs/configuration.md shows."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class HookSettings:
    """Each field is `ACCEPTD_<NAME>` in the environment, and a key of the TOML file in lower case.

    agreement_timeout: a rank without the hook makes its peers wait that long, once, at start.
    """

    address: str = _setting("", "the service, `host:port` or `unix:path`; empty: the hook does nothing")
    enabled: bool = _setting(True, "`false`: the hook does nothing")
    workload: str = _setting("", "label of the traffic; intercepts are fitted apart for each")
    worker: str = _setting(
        "", "the worker's id, stable over restarts; one for each engine on a host; empty: the host's name"
    )
    target_name: str = _setting("", "stands for the target's name where machines have it under different paths")
    draft_name: str = _setting("", "the same for the draft")
    features: str = _setting("x", "`full`: entropy and margin are computed and sent too, for recordings")
    token_file: str = _setting("", "file with the bearer token")
    ca_file: str = _setting("", "certificate authority of the service; turns TLS on")
    cert_file: str = _setting("", "client certificate; with `ACCEPTD_KEY_FILE`")
    key_file: str = _setting("", "its key")
    rank0_confidences: bool = _setting(
        False,
        "all tensor-parallel ranks decide with rank 0's confidences: for hardware whose ranks differ in the last bit",
    )
    agreement_timeout: float = _setting(120.0, "seconds a tensor-parallel rank waits at start for the others to agree")

    def validate(self) -> HookSettings:
        """Itself. Raises ConfigError with the key and what it may be."""
        if self.address and not _ADDRESS.fullmatch(self.address):
            raise ConfigError(f"ACCEPTD_ADDRESS is {self.address!r}; accepted: host:port, [ipv6]:port or unix:path")
        for key, limit in _LENGTHS.items():
            size = len(getattr(self, key).encode())
            if size > limit:
                raise ConfigError(f"{variable(key)} has {size} bytes; accepted: at most {limit}")
            if not getattr(self, key).isprintable():
                raise ConfigError(
                    f"{variable(key)} is {getattr(self, key)!r}; accepted: printable characters and spaces"
                )
        if self.features not in FEATURES:
            raise ConfigError(f"ACCEPTD_FEATURES is {self.features!r}; accepted: {' or '.join(FEATURES)}")
        if not 0 < self.agreement_timeout <= _LONGEST_AGREEMENT:
            raise ConfigError(
                f"ACCEPTD_AGREEMENT_TIMEOUT is {self.agreement_timeout:g}; "
                f"accepted: seconds above 0, at most {_LONGEST_AGREEMENT:g}"
            )
        self.identity.check_files()
        return self

    @property
    def identity(self) -> Identity:
        """Who this worker says it is. Raises ConfigError for settings that contradict each other."""
        return Identity(*(getattr(self, name) for name in FILES))

    @property
    def worker_name(self) -> str:
        """`worker`, or the host's name."""
        return self.worker or socket.gethostname()[:MAX_WORKER_BYTES]


def load(environment: Mapping[str, str]) -> HookSettings:
    """Settings of this process. The environment wins over the file. Raises ConfigError."""
    values: dict[str, Any] = {}
    path = environment.get(CONFIG_FILE, "")
    if path:
        values |= _from_file(Path(path))
    for key in _TYPES:
        text = environment.get(variable(key))
        if text is not None:
            values[key] = _parsed(variable(key), text, _TYPES[key])
    return replace(HookSettings(), **values).validate()


def with_additional(settings: HookSettings, additional: Any) -> HookSettings:
    """`settings` under what vLLM's `additional_config` holds for "acceptd". Raises ConfigError."""
    section = additional.get("acceptd", {}) if isinstance(additional, dict) else {}
    if not isinstance(section, dict):
        raise ConfigError(f"additional_config.acceptd is {section!r}; accepted: an object with {_or(ADDITIONAL_KEYS)}")
    for key, value in section.items():
        if key not in ADDITIONAL_KEYS:
            raise ConfigError(
                f"additional_config.acceptd.{key}; accepted there: {_or(ADDITIONAL_KEYS)} "
                "(vLLM logs it: the rest comes from the environment or a file)"
            )
        if type(value) is not _TYPES[key]:
            raise ConfigError(f"additional_config.acceptd.{key} is {value!r}; accepted: {_TYPES[key].__name__}")
    return replace(settings, **section).validate()


_ADDRESS: Final = re.compile(r"unix:.+|(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}|(dns|ipv4|ipv6):\S+")
_LENGTHS: Final = {
    "workload": MAX_WORKLOAD_BYTES,
    "worker": MAX_WORKER_BYTES,
    "target_name": MAX_NAME_BYTES,
    "draft_name": MAX_NAME_BYTES,
}
_LONGEST_AGREEMENT: Final = 3600.0
_TYPES: Final[dict[str, type]] = {f.name: type(f.default) for f in fields(HookSettings)}
_BOOLEANS: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def _or(names: tuple[str, ...]) -> str:
    return " and ".join(names)


def _parsed(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.strip().lower() not in _BOOLEANS:
            raise ConfigError(f"{name} is {text!r}; accepted: true or false")
        return _BOOLEANS[text.strip().lower()]
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{name} is {text!r}; accepted: a number of seconds") from None
    return text.strip()


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{CONFIG_FILE} names {str(path)!r}, which cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML ({error})") from None
    for key, value in values.items():
        if key not in _TYPES:
            raise ConfigError(f"{path}: key {key!r}; accepted: {', '.join(_TYPES)}")
        kind = _TYPES[key]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ConfigError(f"{path}: {key} is {value!r}; accepted: {kind.__name__}")
    return values
