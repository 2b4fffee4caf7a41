"""Keeps freed memory for the next batch instead of handing it back to the system."""

from __future__ import annotations

from typing import Final

import numpy as np

#: Free memory at the top of the heap that the process keeps, at most twice this many bytes. Raising it keeps more after
#: a burst. Below some 2 MB each batch's scratch arrays are given back and faulted in anew: a seventh of the service's
#: CPU time (`make bench`, throughput).
_KEPT: Final = 16 << 20


def keep_freed_memory() -> None:
    """Has glibc's malloc keep up to 32 MB of free memory. Elsewhere it does nothing.

    glibc raises its thresholds for mmap and for trimming to the size of what is freed (mallopt(3), M_MMAP_THRESHOLD).
    No page of the block is touched.
    """
    np.empty(_KEPT, np.uint8)
