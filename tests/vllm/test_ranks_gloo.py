"""The real thing behind the seams: TCPStore for the agreement, a gloo group in two processes for the broadcast."""

import json
import socket
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from vllm_client_hook.ranks import GroupRanks, agree

RANK = """
import json, sys
from datetime import timedelta
import torch
from torch import distributed
from vllm_client_hook import ranks

rank, port, options = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
distributed.init_process_group(
    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
)
group = ranks.GroupRanks(rank, 2, lambda tensor: distributed.broadcast(tensor, src=0))
store = distributed.distributed_c10d._get_default_store()
why = ranks.agree(group, store, "acceptd/0-1/1", options, timeout_seconds=30)
got = None
if not why:
    words = torch.arange(9, dtype=torch.int32) * (rank + 1) if rank == 0 else torch.zeros(9, dtype=torch.int32)
    group.broadcast(words)
    got = words.tolist()
distributed.barrier()
print(json.dumps([why, got]))
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("same", [True, False])
def test_two_processes_agree_and_share_a_block(same):
    port = str(free_port())
    options = [json.dumps({"K": 4}), json.dumps({"K": 4 if same else 5})]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), port, options[rank]], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [json.loads(process.communicate(timeout=100)[0].splitlines()[-1]) for process in processes]
    if same:
        assert outputs == [["", list(range(9))]] * 2
    else:
        assert outputs[0] == outputs[1]
        assert "rank 1 differs" in outputs[0][0]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_rank_costs_the_timeout_and_no_more(missing):
    port = free_port()
    timeout = timedelta(seconds=20)
    master = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timeout)
    ranks = GroupRanks(1 - missing, 2, lambda tensor: None)
    why = agree(ranks, master, "acceptd/0-1/1", {"K": 4}, timeout_seconds=0.3)
    assert "is the hook installed on every rank?" in why
    # The rank that comes too late finds the verdict and is stock, too.
    late = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout)
    assert agree(GroupRanks(missing, 2, lambda tensor: None), late, "acceptd/0-1/1", {"K": 4}, timeout_seconds=5) == why


def test_two_clients_that_decide_at_once_get_one_verdict():
    port = free_port()
    timeout = timedelta(seconds=20)
    stores = [TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timeout)]
    stores.append(TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout))
    for attempt in range(20):
        results = {}

        def run(rank, attempt=attempt, results=results):
            ranks = GroupRanks(rank, 2, lambda tensor: None)
            # Rank 1 gives up about when rank 0 arrives.
            limit = 0.01 if rank else 2.0
            results[rank] = agree(ranks, stores[rank], f"acceptd/{attempt}", {"K": 4}, timeout_seconds=limit)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in (1, 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert results[0] == results[1]
