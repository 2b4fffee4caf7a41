"""The service's certificate: read again when its files change, for connections made from then on."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from acceptd.errors import ConfigError
from acceptd.pem import check_authorities, check_chain
from estimator_service.access.tokens import stamp_of

if TYPE_CHECKING:
    from estimator_service.metrics import Metrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Loaded:
    """What the files held. stamps: of the files when they were read."""

    stamps: tuple[tuple[int, ...], ...]
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
        self._tried = self._loaded.stamps
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
        """Reads the files if they have changed. What cannot be used is logged and counted, and the old ones stay."""
        try:
            stamps = self._stamps()
            if stamps == self._tried:
                return
            self._tried = stamps
            self._loaded = self._load()
            self.context.load_cert_chain(self._cert, self._key, password="")
        except ConfigError as error:
            self._failed(str(error))
        except (OSError, ssl.SSLError) as error:
            if self._tried:
                self._tried = ()
                self._failed(str(error))
        else:
            self._metrics.reloaded("certificate", "loaded")
            logger.info("certificate: read again from %s", self._cert)

    def _failed(self, why: str) -> None:
        self._metrics.reloaded("certificate", "failed")
        logger.error("certificate: %s; the one read before stays", why)

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
        try:
            stamps = self._stamps()
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}; accepted: a readable PEM file") from None
        cert = _read("tls_cert", self._cert)
        key = _read("tls_key", self._key)
        client_ca = _read("tls_client_ca", self._client_ca) if self._client_ca else None
        try:
            # gRPC itself would take a key that belongs to another certificate, and fail each handshake.
            check_chain(cert, key)
        except ValueError as error:
            raise ConfigError(
                f"tls_cert = {str(self._cert)!r}, tls_key = {str(self._key)!r}: {error}; "
                "accepted: a PEM chain and its key without a passphrase"
            ) from None
        if client_ca is not None:
            try:
                check_authorities(client_ca)
            except ValueError as error:
                raise ConfigError(
                    f"tls_client_ca = {str(self._client_ca)!r}: {error}; accepted: PEM certificates"
                ) from None
        return _Loaded(stamps, grpc.ssl_server_certificate_configuration([(key, cert)], client_ca))


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} = {str(path)!r}: {error.strerror}; accepted: a readable PEM file") from None
