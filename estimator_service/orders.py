"""What operators told a pair, over and above its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from acceptd.types import Version


@dataclass(frozen=True)
class Orders:
    """pinned: version whose coefficients stay in force, None: fits are published.

    mode: "trim", "shadow" or "off", exploration_rate: share of drafted slots in [0, 1]; None: what the settings say.
    """

    pinned: Version | None = None
    mode: str | None = None
    exploration_rate: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        pinned = [self.pinned.epoch, self.pinned.counter] if self.pinned else None
        return {"pinned": pinned, "mode": self.mode, "exploration_rate": self.exploration_rate}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Orders:
        """What `to_json` gave."""
        pinned = value["pinned"]
        return cls(Version(*pinned) if pinned else None, value["mode"], value["exploration_rate"])
