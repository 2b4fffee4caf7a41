"""The service's certificate: read again when its files change, for connections made from then on."""

from __future__ import annotations

import datetime
import logging
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from acceptd.errors import ConfigError
from acceptd.names import path_shown
from acceptd.pem import check_authorities, check_chain, not_after
from estimator_service.access.tokens import stamp_of

if TYPE_CHECKING:
    from estimator_service.metrics import Metrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Loaded:
    """What the files held. stamps: of the files when they were read. not_after: Unix seconds."""

    stamps: tuple[tuple[int, ...], ...]
    not_after: float
    configuration: grpc.ServerCertificateConfiguration


class Certificates:
    """cert: chain, PEM. key: its private key, PEM. client_ca: where clients' certificates must come from, or None.

    Raises ConfigError, naming the setting, if they cannot be used. `refresh` is called by one thread; gRPC asks for the
    latest from threads of its own.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None, metrics: Metrics) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._metrics = metrics
        self._loaded = self._load()
        self._handed_out = self._loaded.configuration
        self._trouble = ""
        metrics.identity("certificate")
        self._note()
        #: For the HTTP port.
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(cert, key, password="")
        self._credentials = grpc.dynamic_ssl_server_credentials(
            self._loaded.configuration,
            self._latest,  # type: ignore[arg-type]  # None is allowed: as before
            require_client_authentication=client_ca is not None,
        )

    @property
    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`; must be kept for as long as the port is open."""
        return self._credentials

    def refresh(self) -> None:
        """Reads the files if they have changed or could not be used.

        What cannot be used is logged and counted, once for each reason, and the old ones stay.
        """
        if self._stamps() == self._loaded.stamps and not self._trouble:
            return
        try:
            self._loaded = self._load()
            self.context.load_cert_chain(self._cert, self._key, password="")
        except (ConfigError, OSError) as error:
            told, self._trouble = self._trouble, str(error)
            if told != self._trouble:
                self._metrics.reloaded("certificate", "failed")
                logger.error("certificate: %s; the one read before stays", error)
        else:
            self._trouble = ""
            self._metrics.reloaded("certificate", "loaded")
            logger.info("certificate: read again from %s", self._cert)
            self._note()

    def _note(self) -> None:
        """What the certificate's own date says."""
        until = self._loaded.not_after
        self._metrics.certificate_not_after.set(until)
        if until < time.time():
            day = datetime.datetime.fromtimestamp(until, datetime.UTC)
            logger.warning(
                "certificate: %s has expired (%s); no client takes it", self._cert, f"{day:%Y-%m-%d %H:%M} UTC"
            )

    def _latest(self) -> grpc.ServerCertificateConfiguration | None:
        """gRPC asks at each handshake; None: as before."""
        latest = self._loaded.configuration
        if latest is self._handed_out:
            return None
        self._handed_out = latest
        return latest

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        files = [self._cert, self._key, *([self._client_ca] if self._client_ca else [])]
        return tuple(stamp_of(path) for path in files)

    def _load(self) -> _Loaded:
        stamps = self._stamps()
        cert = _read("tls_cert", self._cert)
        key = _read("tls_key", self._key)
        client_ca = _read("tls_client_ca", self._client_ca) if self._client_ca else None
        try:
            # gRPC itself would take a key that belongs to another certificate, and fail each handshake.
            check_chain(cert, key)
        except ValueError as error:
            raise ConfigError(
                f"tls_cert = {path_shown(self._cert)}, tls_key = {path_shown(self._key)}: {error}; "
                "accepted: a PEM chain and its key without a passphrase"
            ) from None
        if self._client_ca and client_ca is not None:
            try:
                check_authorities(client_ca)
            except ValueError as error:
                raise ConfigError(
                    f"tls_client_ca = {path_shown(self._client_ca)}: {error}; accepted: PEM certificates"
                ) from None
        return _Loaded(
            stamps, not_after(cert, key), grpc.ssl_server_certificate_configuration([(key, cert)], client_ca)
        )


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} = {path_shown(path)}: {error.strerror}; accepted: a readable PEM file") from None
