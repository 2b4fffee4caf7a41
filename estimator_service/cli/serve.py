"""`acceptd serve`: one flag for each setting of `estimator_service.config.Settings`."""

from __future__ import annotations

import inspect
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
import uvloop

from acceptd.errors import ConfigError
from estimator_service.cli.output import print_json
from estimator_service.config import CONFIG_VARIABLE, ENV_PREFIX, Settings, load_settings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from estimator_service.server import Server

#: Headings of `--help`, each by the setting that it begins with.
_HEADINGS = {
    "listen": "Addresses and files",
    "tls_cert": "Identity",
    "method": "Fitting",
    "publish_min_change": "Publishing",
    "durability": "Durability",
    "flush_rows": "Streams",
    "max_pairs": "Limits",
}

_HELP = f"""Run the service.

Every flag is also a variable of the environment ({ENV_PREFIX}LISTEN, …)
and a key of a TOML file (listen = …). Flags come first, then the
environment, then the file.

Examples:
  acceptd serve --store /var/lib/acceptd/acceptd.sqlite
  acceptd serve --config /etc/acceptd.toml --log-level debug
  acceptd serve --listen 0.0.0.0:50051 --tls-cert tls.crt --tls-key tls.key --tokens tokens
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("serve", help=_HELP)(_command())


def _command() -> Any:
    """A function whose parameters are the settings, for typer to read."""

    def command(**given: Any) -> None:
        run(given.pop("config"), given.pop("as_json"), given)

    config = Annotated[
        Path | None,
        typer.Option(envvar=CONFIG_VARIABLE, metavar="FILE", help="TOML file with settings."),
    ]
    as_json = Annotated[bool, typer.Option("--json", help="Say as JSON which ports were opened.")]
    parameters = {"config": (config, None), "as_json": (as_json, False)}
    heading = ""
    for name, field in Settings.model_fields.items():
        heading = _HEADINGS.get(name, heading)
        parameters[name] = (_option(name, field, heading), None)
    keyword = inspect.Parameter.KEYWORD_ONLY
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, keyword, default=d, annotation=a) for n, (a, d) in parameters.items()]
    )
    command.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}
    return command


def _option(name: str, field: FieldInfo, heading: str) -> Any:
    """The flag of a setting. Values stay text: the settings class checks them, whatever their source."""
    flag, kind = f"--{name.replace('_', '-')}", field.annotation
    default = "none" if field.default is None else field.default
    description = field.description or ""
    text = f"{description[:1].upper()}{description[1:]}. [default: {default}]".replace("[", "\\[")
    if kind is bool:
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=text, rich_help_panel=heading)]
    if get_origin(kind) is Literal:
        metavar = "|".join(map(str, get_args(kind)))
    else:
        metavar = {int: "N", float: "X"}.get(kind, "TEXT") if isinstance(kind, type) else "PATH"
    return Annotated[str | None, typer.Option(flag, help=text, metavar=metavar, rich_help_panel=heading)]


def run(config: Path | None, as_json: bool, flags: dict[str, Any]) -> None:
    """Serves until SIGTERM or SIGINT. A wrong setting is exit status 2; one line says when the ports are open."""
    from estimator_service.server import serve  # noqa: PLC0415  (half of the time any other command would take)

    try:
        settings = load_settings(flags, config=config)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(2) from None
    logging.basicConfig(
        stream=sys.stderr, level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )

    def ready(server: Server) -> None:
        if as_json:
            print_json({"address": server.address, "metrics_address": server.metrics_address}, indent=None)
        else:
            metrics = f", metrics at http://{server.metrics_address}/metrics" if server.metrics_address else ""
            sys.stdout.write(f"acceptd serves gRPC at {server.address}{metrics}\n")
            sys.stdout.flush()

    uvloop.run(serve(settings, ready=ready))
