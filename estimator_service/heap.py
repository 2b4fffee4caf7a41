"""What a service asks of its process' memory: freed blocks stay for the next batch, and collections are short."""

from __future__ import annotations

import gc
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


#: New objects, less those freed, before the youngest are collected. A publication makes thousands for hundreds of
#: workers, all gone once it is acknowledged; with a lower number they are looked through while the workers wait.
#: Streams leave hardly any cycles behind; raising it lets those that there are take more memory.
_YOUNG: Final = 50_000


def shorten_collections() -> None:
    """Leaves what the process has loaded by now out of garbage collections.

    Modules and their code are most of its objects, and to look through them all keeps every worker waiting. For a
    process that is a service and nothing else: what is garbage later among them is never freed.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
