"""Which of gRPC's threads read the service's sockets. Free of imports of gRPC, which decides when it is loaded."""

from __future__ import annotations

import os
from typing import Final

#: gRPC's experiment of listening through its event engine, turned off: that hands each message to another thread before
#: the one that waits for it, which costs the service a sixth of its CPU time with 500 workers (`make load`).
_EXPERIMENTS: Final = "-event_engine_listener"


def read_in_place() -> None:
    """Has the gRPC that this process loads next read sockets in the thread that waits for them.

    GRPC_EXPERIMENTS, where somebody has set it, stays as it is. A gRPC that does not know the experiment any more says
    so in its log, once, and works as it does.
    """
    os.environ.setdefault("GRPC_EXPERIMENTS", _EXPERIMENTS)
