"""What a pair publishes: one version, with the coefficients of each workload label."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from acceptd.codec import encode_coefficients
from acceptd.types import Coefficients, SegmentCoefficients, Version
from acceptd.v1 import estimator_pb2, types_pb2
from estimator_service.fit.report import Calibration


@dataclass(frozen=True)
class Publication:
    """Immutable. `pooled` serves workers without a label and labels that are not in `by_workload`.

    cause: "prior", "refit", "restart", "pin", ... wall: seconds since the Unix epoch, shown only. published: monotonic
    seconds of this process, what ages are measured from. calibration: of the round that brought it about. origin: the
    version that these coefficients were first published as, None: this one.
    """

    pooled: Coefficients
    cause: str
    wall: float
    published: float
    by_workload: dict[str, Coefficients] = field(default_factory=dict)
    calibration: Calibration | None = None
    origin: Version | None = None
    _updates: dict[tuple[str, bool, types_pb2.Mode, float], bytes] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def version(self) -> Version:
        """The one version all of them carry."""
        return self.pooled.version

    @property
    def source(self) -> Version:
        """`origin`, or its own version."""
        return self.origin or self.version

    def again(self, version: Version, cause: str, wall: float, published: float) -> Publication:
        """The same coefficients under another version."""
        by_workload = {label: replace(value, version=version) for label, value in self.by_workload.items()}
        pooled = replace(self.pooled, version=version)
        return Publication(pooled, cause, wall, published, by_workload, origin=self.source)

    def of(self, workload: str) -> Coefficients:
        """Coefficients for workers with this label."""
        return self.by_workload.get(workload, self.pooled)

    def update(self, workload: str, *, straight: bool, mode: types_pb2.Mode, rate: float) -> bytes:
        """`of(workload)` as an encoded StreamResponse without a nonce, made once for all workers.

        straight: without knots and segments. rate: of exploration.
        """
        key = workload if workload in self.by_workload else "", straight, mode, rate
        update = self._updates.get(key)
        if update is None:
            coefficients = self.of(workload)
            message = estimator_pb2.CoefficientUpdate(
                coefficients=encode_coefficients(coefficients.straight() if straight else coefficients),
                mode=mode,
                exploration_rate=rate,
            )
            update = self._updates[key] = estimator_pb2.StreamResponse(update=message).SerializeToString()
        return update

    def to_json(self) -> dict[str, Any]:
        """Plain values; floats survive exactly."""
        return {
            "version": [self.version.epoch, self.version.counter],
            "cause": self.cause,
            "wall": self.wall,
            "pooled": _coefficients_to_json(self.pooled),
            "by_workload": {label: _coefficients_to_json(value) for label, value in self.by_workload.items()},
            "calibration": asdict(self.calibration) if self.calibration else None,
            "origin": [self.origin.epoch, self.origin.counter] if self.origin else None,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], *, published: float) -> Publication:
        """What `to_json` gave. Raises KeyError, TypeError or ValueError for anything else."""
        version = Version(*value["version"])
        calibration, origin = value["calibration"], value.get("origin")
        return cls(
            _coefficients_from_json(value["pooled"], version),
            value["cause"],
            value["wall"],
            published,
            {label: _coefficients_from_json(item, version) for label, item in value["by_workload"].items()},
            Calibration(**{name: _tuples(item) for name, item in calibration.items()}) if calibration else None,
            Version(*origin) if origin else None,
        )


def _coefficients_to_json(value: Coefficients) -> dict[str, Any]:
    return {
        "line": [value.line.slopes, value.line.intercepts],
        "knots": value.knots,
        "segments": {str(segment): [item.slopes, item.intercepts] for segment, item in value.segments.items()},
        "evidence": value.evidence,
    }


def _coefficients_from_json(value: dict[str, Any], version: Version) -> Coefficients:
    return Coefficients(
        version,
        SegmentCoefficients(*_tuples(value["line"])),
        _tuples(value["knots"]),
        {int(segment): SegmentCoefficients(*_tuples(item)) for segment, item in value["segments"].items()},
        _tuples(value["evidence"]),
    )


def _tuples(value: Any) -> Any:
    """JSON's lists as tuples, all the way down."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
