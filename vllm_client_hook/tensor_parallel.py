"""The tensor-parallel group of the worker that this process is."""

from __future__ import annotations

from typing import Any

from vllm_client_hook.ranks import GroupRanks, SingleRank


def own_group() -> tuple[Any, Any, str]:
    """The group as this rank sees it, its key-value store, and a name that is equal on its ranks alone."""
    from torch.distributed import distributed_c10d  # noqa: PLC0415 (torch: only where a worker loads)
    from vllm.distributed.parallel_state import get_tp_group  # noqa: PLC0415

    group = get_tp_group()
    if group.world_size == 1:
        return SingleRank(), None, "single"
    ranks = GroupRanks(group.rank_in_group, group.world_size, lambda tensor: group.broadcast(tensor, src=0))
    return ranks, distributed_c10d._get_default_store(), "-".join(map(str, group.ranks))
