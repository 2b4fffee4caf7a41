"""Whether this machine's Triton gives the right numbers, asked once when a worker loads.

A kernel that cannot be compiled, or computes something else, must be found before the ranks agree to be active: later,
one rank's failure would leave the others in a broadcast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from acceptd.errors import HookError
from acceptd.types import prior
from vllm_client_hook import reference
from vllm_client_hook.block import from_coefficients
from vllm_client_hook.rows import NUM_COUNTERS
from vllm_client_hook.slots import Page, Slots

if TYPE_CHECKING:
    from types import ModuleType

#: Largest difference from the torch reference, nats and probability: float32 sums in another order, and an
#: approximate exponential, differ by far less.
TOLERANCE: Final = 1e-3

_K = 2


def self_test(numerics: ModuleType, device: Any, *, full: bool = False) -> None:
    """Runs `numerics` and the torch reference on one small step; raises HookError if they differ. May wait."""
    (features, confidence, records, totals), expected = (
        _run(module, device, full=full) for module in (numerics, reference)
    )
    for name, got, right in (("feature", features, expected[0]), ("probability", confidence, expected[1])):
        difference = float((got - right).abs().max())
        if not difference <= TOLERANCE:
            raise HookError(f"self-test: {name} differs by {difference:g} from the torch reference on {device}")
    # Word 3 on are features, compared above.
    if not (torch.equal(records[:, :3], expected[2][:, :3]) and torch.equal(totals, expected[3])):
        raise HookError(f"self-test: packed rows differ from the torch reference on {device}")


def _run(module: ModuleType, device: Any, *, full: bool) -> tuple[Any, Any, Any, Any]:
    slots = Slots(3, _K, device, full=full)
    page = Page(2, _K, device, full=full)
    words = torch.from_numpy(from_coefficients(prior(_K), index=5).encode()).to(device)
    totals = torch.zeros(NUM_COUNTERS, dtype=torch.int64, device=device)
    confidence = torch.zeros(3, _K, device=device)
    temperature = torch.tensor([1.0, 0.0, 0.4], device=device)
    idx = torch.tensor([2, -1, 0], device=device)
    logits = torch.sin(torch.arange(3 * 100, dtype=torch.float32)).view(3, 100).to(device) * 4
    for step in range(_K):
        position = torch.tensor(step, device=device)
        module.predict(slots, words, words.view(torch.float32), logits, idx, position, confidence, temperature)
    sampled = torch.tensor([2, 1, 1], dtype=torch.int32, device=device)
    rejected = torch.tensor([1, 2, 1], dtype=torch.int32, device=device)
    module.pack(slots, page, totals, idx, sampled, rejected, None)
    return slots.features[:3].clone(), confidence, page.records[:2].clone(), totals
