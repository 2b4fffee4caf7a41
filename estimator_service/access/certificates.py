"""The service's certificate: read again when its files change, for connections made from then on."""

from __future__ import annotations

import datetime
import logging
import math
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from acceptd.errors import ConfigError
from acceptd.names import path_shown
from acceptd.pem import check_authorities, load_chain, not_after
from estimator_service.access.files import FileWatch, Unreadable, read

if TYPE_CHECKING:
    from pathlib import Path

    from estimator_service.metrics import Metrics

logger = logging.getLogger(__name__)

_PEM: Final = "a readable PEM file"


@dataclass(frozen=True)
class _Loaded:
    """What the files held. not_after: Unix seconds, NaN if no client could use it."""

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
        #: For the HTTP port.
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._watch = FileWatch([cert, key, *([client_ca] if client_ca else [])])
        self._watch.due()
        self._loaded = self._load()
        self._watch.used()
        self._handed_out = self._loaded.configuration
        metrics.identity("certificate")
        self._note()
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
        """Reads the files if they have changed or could not be read.

        What cannot be used is logged and counted, once for each reason, and the old ones stay.
        """
        if not self._watch.due():
            return
        try:
            self._loaded = self._load()
        except ConfigError as error:
            if self._watch.failed(error):
                self._metrics.reloaded("certificate", "failed")
                logger.error("certificate: %s; the one read before stays", error)
            return
        self._watch.used()
        self._metrics.reloaded("certificate", "loaded")
        logger.info("certificate: read again from %s", self._cert)
        self._note()

    def _note(self) -> None:
        """What the certificate's own date says."""
        until = self._loaded.not_after
        self._metrics.certificate(until)
        if math.isnan(until):
            logger.warning(
                "certificate: clients refuse %s as a server's; look at its key usage and critical extensions",
                self._cert,
            )
        elif until < time.time():
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

    def _load(self) -> _Loaded:
        """Reads each file once, and puts what it read into `context`, too. Raises ConfigError, with nothing changed."""
        cert = read("tls_cert", self._cert, _PEM)
        key = read("tls_key", self._key, _PEM)
        client_ca = read("tls_client_ca", self._client_ca, _PEM) if self._client_ca else None
        if self._client_ca and client_ca is not None:
            try:
                check_authorities(client_ca)
            except ValueError as error:
                raise ConfigError(
                    f"tls_client_ca = {path_shown(self._client_ca)}: {error}; accepted: PEM certificates"
                ) from None
        named = f"tls_cert = {path_shown(self._cert)}, tls_key = {path_shown(self._key)}"
        try:
            # gRPC itself would take a key that belongs to another certificate, and fail each handshake.
            load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)
            load_chain(self.context, cert, key)
        except ValueError as error:
            raise ConfigError(f"{named}: {error}; accepted: a PEM chain and its key without a passphrase") from None
        except OSError as error:
            raise Unreadable(f"{named}: {error.strerror}") from None
        return _Loaded(not_after(cert, key), grpc.ssl_server_certificate_configuration([(key, cert)], client_ca))
