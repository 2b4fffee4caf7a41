"""The service's settings: flags over environment (`ACCEPTD_…`) over a TOML file, checked at start."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from acceptd.addresses import is_loopback
from acceptd.errors import ConfigError
from acceptd.limits import MAX_IN_FLIGHT, MAX_ROWS
from estimator_service.fit.settings import FitSettings

_FIT = FitSettings()

ENV_PREFIX = "ACCEPTD_"
#: Likeness, of 1, from which on an unknown variable is taken for a misspelt setting: two letters the wrong way round
#: are, none of the hook's own variables is.
_NEAR_MISS = 0.8
#: Names the TOML file, and is itself no setting.
CONFIG_VARIABLE = "ACCEPTD_CONFIG"


class Address(NamedTuple):
    """A place to listen at. Port 0: any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def parse_address(value: str) -> Address:
    """`host:port` or `[v6]:port`. Raises ValueError saying what is accepted."""
    host, colon, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("accepted: HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:50051")
    return Address(host, int(port))


class Settings(BaseSettings):
    """All that `acceptd serve` can be told. Each: flag `--name-with-dashes`, env `ACCEPTD_NAME`, TOML `name`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, validate_default=True)

    listen: str = Field("127.0.0.1:50051", description="gRPC address: HOST:PORT, port 0 for any free one")
    metrics_listen: str = Field(
        "127.0.0.1:9464", description="HTTP address of the status page, /metrics and /healthz; empty: none"
    )
    insecure: bool = Field(False, description="allow listening beyond loopback without TLS")
    store: Path | None = Field(None, description="SQLite file; none: everything is forgotten at exit")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe level logged")

    tls_cert: Path | None = Field(None, description="certificate chain of the gRPC port, PEM; none: no TLS")
    tls_key: Path | None = Field(None, description="its private key, PEM, without a passphrase")
    tls_client_ca: Path | None = Field(
        None, description="certificates that clients' must come from, PEM; none: clients need no certificate"
    )
    tokens: Path | None = Field(
        None, description="file of token hashes (`acceptd token new`); none: whoever connects may do everything"
    )
    metrics_tls: bool = Field(False, description="serve the metrics port with the same certificate")
    metrics_auth: bool = Field(
        False, description="the status page and /metrics ask for a reader's token; /healthz does not"
    )

    method: Literal["auto", "line", "round"] = Field(
        "auto",
        description="auto: line, link and segments, whichever predicts better; line; round: vLLM's one damped step",
    )
    knots: bool = Field(_FIT.knots, description="auto: let the link be published where it predicts better")
    segments: bool = Field(_FIT.segments, description="auto: with the link, coefficients for each sampling segment")
    half_life_observations: float = Field(
        _FIT.half_life_observations, gt=0, description="graded draft tokens after which a round's weight has halved"
    )
    recent_half_life_observations: float = Field(
        _FIT.recent_half_life_observations, gt=0, description="the same for the window that follows the workload"
    )
    half_life_seconds: float = Field(
        _FIT.half_life_seconds, gt=0, description="time after which a round's weight has halved"
    )
    hold_tolerance: float = Field(
        _FIT.hold_tolerance,
        ge=0,
        description="hold a fit whose log-loss on the newest round is worse by more than this share",
    )
    round_blocks: int = Field(
        640, ge=1, le=10_000_000, description="blocks after which a round is closed; a pair's first rounds are shorter"
    )
    round_seconds: float = Field(10.0, gt=0, le=86_400, description="seconds after which a round with blocks is closed")
    round_min_seconds: float = Field(
        0.1, ge=0, le=60, description="least seconds between refits of a pair: bounds the share of a core they take"
    )

    publish_min_change: float = Field(
        0.001, ge=0, le=1, description="publish when any confidence changes by more than this"
    )
    publish_max_age_seconds: float = Field(60.0, gt=0, le=86_400, description="publish anyway when older than this")
    history_versions: int = Field(2000, ge=10, le=1_000_000, description="versions kept a pair, oldest deleted first")

    durability: Literal["relaxed", "strict"] = Field(
        "relaxed",
        description="when acknowledged batches are committed. relaxed: within commit_seconds after; strict: before",
    )
    commit_seconds: float = Field(0.5, gt=0, le=1.0, description="relaxed: longest time between two commits")
    fsync: Literal["normal", "full"] = Field(
        "normal", description="normal survives a killed process; full a power cut too (an fsync a commit)"
    )
    snapshot_seconds: float = Field(10.0, gt=0, le=3600, description="longest time between snapshots of a busy pair")
    backup_seconds: float = Field(900.0, gt=0, le=86_400, description="time between copies kept beside the store")

    mode: Literal["trim", "shadow", "off"] = Field(
        "trim", description="what workers do with the budget; shadow: decide and report, but verify everything"
    )
    exploration_rate: float = Field(
        0.01, ge=0, le=1, description="share of drafted tokens verified beyond the budget, for their labels; 0: none"
    )

    flush_rows: int = Field(256, ge=1, le=MAX_ROWS, description="rows after which a worker sends a batch")
    flush_seconds: float = Field(1.0, gt=0, le=60, description="age after which a worker sends a batch")
    answer_seconds: float = Field(
        0.25,
        ge=0,
        le=2,
        description="pause between answers that accept batches of a worker; the last waits twice it",
    )
    heartbeat_seconds: float = Field(
        5.0, gt=0, le=600, description="time after which a worker's coefficients are confirmed, unless a push did"
    )
    coefficients_max_age_seconds: float = Field(
        60.0, gt=0, le=86_400, description="age without a heartbeat after which workers stop trusting coefficients"
    )
    hello_seconds: float = Field(10.0, gt=0, le=600, description="time a new stream has to say Hello")
    drain_seconds: float = Field(3.0, ge=0, le=600, description="time streams have to end after SIGTERM")
    reconnect_seconds: float = Field(1.0, ge=0, le=600, description="when drained workers may come back")

    max_pairs: int = Field(256, ge=1, le=100_000, description="pairs known at once (under 2 MB of memory each)")
    max_workers: int = Field(2048, ge=1, le=100_000, description="streams at once")
    max_workers_a_pair: int = Field(1024, ge=1, le=100_000, description="streams of one pair at once")
    max_in_flight: int = Field(MAX_IN_FLIGHT, ge=1, le=64, description="batches a worker may have unanswered")
    max_rows: int = Field(MAX_ROWS, ge=1, le=MAX_ROWS, description="rows a batch")
    max_rows_per_second: float = Field(0.0, ge=0, description="rows a second a worker; 0: no limit")
    max_rows_per_second_a_pair: float = Field(0.0, ge=0, description="rows a second of a pair's workers; 0: no limit")
    max_connection_seconds: float = Field(
        0.0, ge=0, le=31_536_000, description="age at which a connection is to be opened anew; 0: none"
    )

    @field_validator("listen", "metrics_listen")
    @classmethod
    def _check_address(cls, value: str) -> str:
        if value:
            parse_address(value)
        return value

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        if not value:
            raise ValueError("accepted: HOST:PORT")
        return value

    @model_validator(mode="after")
    def _check_reach(self) -> Settings:
        for name, secured, how in (
            ("listen", self.tls_cert is not None, "tls_cert and tls_key"),
            ("metrics_listen", self.metrics_tls, "metrics_tls = true"),
        ):
            value = getattr(self, name)
            if value and not (secured or self.insecure or parse_address(value).loopback):
                raise ValueError(
                    f"{name} = {value!r} reaches beyond this machine without TLS; "
                    f"accepted: a loopback address, {how}, or insecure = true"
                )
        return self

    @model_validator(mode="after")
    def _check_identity(self) -> Settings:
        for name, needs in (
            ("tls_cert", "tls_key"),
            ("tls_key", "tls_cert"),
            ("tls_client_ca", "tls_cert"),
            ("metrics_tls", "tls_cert"),
            ("metrics_auth", "tokens"),
        ):
            if getattr(self, name) and not getattr(self, needs):
                raise ValueError(f"{name} is set and {needs} is not; accepted: both, or neither")
        return self

    @model_validator(mode="after")
    def _check_heartbeats(self) -> Settings:
        most = self.coefficients_max_age_seconds / 2
        if self.heartbeat_seconds > most:
            raise ValueError(
                f"heartbeat_seconds is {self.heartbeat_seconds:g}; accepted: at most {most:g}, half of "
                "coefficients_max_age_seconds, or workers stop trusting coefficients between two heartbeats"
            )
        return self

    @property
    def listen_address(self) -> Address:
        """`listen`, parsed."""
        return parse_address(self.listen)

    @property
    def metrics_address(self) -> Address | None:
        """`metrics_listen`, parsed; None if it is off."""
        return parse_address(self.metrics_listen) if self.metrics_listen else None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load_settings` passes: it has merged the sources itself, so that errors can name theirs."""
        return (init_settings,)


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from flags (None: not given) over environment over TOML (`config`, or the file `ACCEPTD_CONFIG` names).

    Raises ConfigError: one line with the source, the key and what it accepts.
    """
    environ = os.environ if environ is None else environ
    path = config or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, given in (
        (str(path), _from_file(path) if path else {}),
        ("environment", _from_environment(environ)),
        ("flags", {key: value for key, value in (flags or {}).items() if value is not None}),
    ):
        for key, value in given.items():
            if key not in Settings.model_fields:
                raise ConfigError(f"{source}: {key} is not a setting; {_accepted_keys(key)}")
            values[key] = value
            sources[key] = source
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigError(_explain(error, sources)) from None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"config file {path}: {error.strerror or error}; accepted: a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path}: {error}; accepted: TOML") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings in the environment. The hook's variables share the prefix, so only near misses are errors."""
    found: dict[str, str] = {}
    for name, value in environ.items():
        key = name.removeprefix(ENV_PREFIX).lower()
        if not name.startswith(ENV_PREFIX) or name == CONFIG_VARIABLE:
            continue
        if key in Settings.model_fields:
            found[key] = value
        elif close := difflib.get_close_matches(key, Settings.model_fields, 1, cutoff=_NEAR_MISS):
            raise ConfigError(f"environment: {name} is not a setting; did you mean {ENV_PREFIX}{close[0].upper()}?")
    return found


def _accepted_keys(key: str) -> str:
    close = difflib.get_close_matches(key, Settings.model_fields, 1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"accepted: {', '.join(sorted(Settings.model_fields))}"


def _explain(error: ValidationError, sources: Mapping[str, str]) -> str:
    first = error.errors()[0]
    reason = str(first["msg"]).removeprefix("Value error, ")
    if not first["loc"]:
        return reason
    key = str(first["loc"][0])
    reason = reason[0].lower() + reason[1:]
    return f"{sources.get(key, 'default')}: {key} = {first['input']!r}: {reason}"
