"""Who calls, and what that lets them do. Pure: knows no files and no gRPC."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from acceptd.types import PairKey


class Role(StrEnum):
    """What a token is for. An operator may do all that a reader may; neither may send observations."""

    WORKER = "worker"  # the stream of the pairs it is bound to
    READER = "reader"  # looks, records and exports; changes nothing
    OPERATOR = "operator"  # also pins, rolls back, resets, switches modes, imports


#: Roles that may do what the role asks for.
_GRANTS: Final = {
    Role.WORKER: frozenset({Role.WORKER}),
    Role.READER: frozenset({Role.READER, Role.OPERATOR}),
    Role.OPERATOR: frozenset({Role.OPERATOR}),
}


@dataclass(frozen=True)
class Caller:
    """name: for logs and the audit, never a secret. role: None where no tokens are asked for: everything is allowed.

    pairs: patterns (`*`, `?`, `[…]`) over a pair's id or the target's name, of workers. digest: of its token.
    """

    name: str
    role: Role | None
    pairs: tuple[str, ...] = ("*",)
    digest: bytes = field(default=b"", repr=False)

    def may(self, needed: Role) -> bool:
        """Whether it may do what needs that role."""
        return self.role is None or self.role in _GRANTS[needed]

    def serves(self, key: PairKey) -> bool:
        """Whether a worker with this token may stream for the pair."""
        return any(fnmatchcase(name, pattern) for pattern in self.pairs for name in (key.id, key.target))


#: Of a service that asks for no tokens.
ANYONE: Final = Caller("anonymous", None)

#: Of the call that is being handled; set before its handler runs.
CALLER: Final[ContextVar[Caller]] = ContextVar("caller", default=ANYONE)

_ESTIMATOR: Final = "/acceptd.v1.Estimator/"
#: One answer, for orchestrators. Watching is a stream that a stranger could hold open for good.
_PROBE: Final = "/grpc.health.v1.Health/Check"
_HEALTH: Final = "/grpc.health.v1.Health/"
_REFLECTION: Final = "/grpc.reflection."
_READS: Final = frozenset(
    f"/acceptd.v1.Inspect/{method}"
    for method in (
        "ListPairs",
        "GetPair",
        "WatchPair",
        "GetHistory",
        "GetCosts",
        "ListWorkers",
        "GetCosts",
        "TapPair",
        "ExportPair",
        "ListAudit",
    )
)


def needed_role(method: str) -> Role | None:
    """The role that the gRPC method `/package.Service/Method` needs, None for none. An unknown one needs the most."""
    if method == _PROBE:
        return None
    if method.startswith(_ESTIMATOR):
        return Role.WORKER
    return Role.READER if method in _READS or method.startswith((_REFLECTION, _HEALTH)) else Role.OPERATOR
