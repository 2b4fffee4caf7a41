"""What holds a bound worker together: its estimator, and on rank 0 its uplink. Imports neither torch nor vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm_client_hook.estimator import AcceptanceEstimator
    from vllm_client_hook.uplink import Uplink
    from vllm_client_hook.verification_budget import VerificationBudget

#: Seconds that going to sleep or shutting down may wait for the service. Longer saves more of the last rows when the
#: service is slow, and holds the engine up by as much when it is gone.
_FAREWELL: Final = 1.0

#: Attribute of a worker that holds its link; of the class, once that was extended, None.
LINK_ATTRIBUTE: Final = "_acceptd_link"


def link_of(worker: Any) -> Any:
    """The link of a worker; None: the hook is not active in it."""
    return getattr(worker, LINK_ATTRIBUTE, None)


class Link:
    """Events of a worker's life, for its estimator and uplink. Called between steps, on the worker's main thread."""

    def __init__(self, estimator: AcceptanceEstimator, uplink: Uplink | None, *, rank: int) -> None:
        self.estimator = estimator
        self.uplink = uplink
        self._rank = rank
        self.budget: VerificationBudget | None = None

    def flush(self, timeout: float) -> dict[str, Any]:
        """Sends what is pending and waits up to `timeout` seconds; `flushed`: whether all of it was answered."""
        self.estimator.flush()
        if self.uplink is None:
            return {"active": True, "rank": self._rank}
        return {"active": True, "rank": self._rank, "flushed": self.uplink.flush(timeout)}

    def status(self) -> dict[str, Any]:
        """Plain values: what this rank holds and counted. Reads the device's memory, so it waits for it."""
        estimator = self.estimator
        applied = estimator.apply
        return {
            "active": True,
            "rank": self._rank,
            "version": str(applied.in_force.version),
            "local": applied.in_force.local,
            "mode": applied.in_force.mode.name.lower(),
            "slope": estimator.slope.tolist(),
            "intercepts": estimator.intercepts.tolist(),
            "steps": applied.steps,
            "adopted_at": applied.adopted_at,
            "rejected": applied.rejected,
            "frozen": estimator.frozen,
            "budget": None if self.budget is None else self.budget.status(),
            "uplink": None if self.uplink is None else _plain(self.uplink.stats()),
        }

    def before_sleep(self) -> None:
        """The device's memory is about to go."""
        self.flush(_FAREWELL)

    def after_wake(self) -> None:
        """The device's memory is back, without what it held."""
        self.estimator.reseed()

    def weights_changed(self) -> None:
        """Another target or draft serves from here on."""
        self.estimator.weights_changed()

    def close(self) -> None:
        """The worker shuts down."""
        self.flush(_FAREWELL)
        if self.uplink is not None:
            self.uplink.close()


def _plain(stats: dict[str, Any]) -> dict[str, Any]:
    return {key: str(value) if key == "version" else value for key, value in stats.items()}
