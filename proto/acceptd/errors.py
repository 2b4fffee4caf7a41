"""The errors of acceptd. Each class carries a gRPC status name and whether the same call may be tried again."""

from __future__ import annotations

from typing import ClassVar


class AcceptdError(Exception):
    """Base of all. `code` is the name of a gRPC status, `retry` whether repeating the same request can help."""

    code: ClassVar[str] = "INTERNAL"
    retry: ClassVar[bool] = False


class ConfigError(AcceptdError):
    """A wrong setting, found at start. The message names the key and what it may be."""

    code = "INVALID_ARGUMENT"


class WireError(AcceptdError):
    """A message that breaks the protocol. `field` and `index` say where."""

    code = "INVALID_ARGUMENT"

    def __init__(self, message: str, *, field: str = "", index: int = 0) -> None:
        super().__init__(message)
        self.field = field
        self.index = index


class MalformedBatch(WireError):
    """A column's length or value breaks the layout of ObservationBatch."""


class NonFiniteValue(WireError):
    """NaN or infinity where a number must be finite."""


class TooLarge(WireError):
    """Over one of the limits in `acceptd.limits`."""

    code = "RESOURCE_EXHAUSTED"
    retry = True


class IncompatiblePeer(AcceptdError):
    """K, the feature schema or the pair key differ from what this side can work with. Final."""

    code = "FAILED_PRECONDITION"


class NotAllowed(AcceptdError):
    """No identity (UNAUTHENTICATED), or one without the right (PERMISSION_DENIED)."""

    code = "PERMISSION_DENIED"


class StaleVersion(AcceptdError):
    """A version that sorts before the one in force. Ignored and counted."""

    code = "FAILED_PRECONDITION"


class RefitRejected(AcceptdError):
    """A fit that must not be published. The old coefficients stay; counted by `reason`."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class HookError(AcceptdError):
    """Something in the vLLM worker keeps the hook from acting."""


class UnsupportedVllm(HookError):
    """vLLM's version or signatures are not ones the hook knows: it stands aside, and says so once."""
