"""On ordinary rows and a straight line, predict gives the numbers of the class it stands in for."""

import pytest
import torch
from vllm.v1.worker.gpu.spec_decode.acceptance_estimator import OnlineAcceptanceEstimator

from vllm_client_hook.estimator import AcceptanceEstimator

R, K, V = 5, 3, 700


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_predictions_and_confidences_equal_the_built_ins(per_row, dtype):
    generator = torch.Generator().manual_seed(1)
    device = torch.device("cpu")
    both = [cls(R, K, device) for cls in (OnlineAcceptanceEstimator, AcceptanceEstimator)]
    slots = torch.tensor([3, 0, -1, 4])
    temperature = torch.tensor([1.0, 0.5, 0.7, 0.0, 1.3])
    idx = slots.repeat_interleave(K) if per_row else slots
    steps = [torch.arange(K).repeat(len(slots))] if per_row else [torch.tensor(k) for k in range(K)]
    confidences = [torch.full((R, K), -1.0) for _ in both]
    for step in steps:
        logits = (2 * torch.randn(len(idx), V, generator=generator)).to(dtype)
        for estimator, confidence in zip(both, confidences, strict=True):
            estimator.predict(logits, idx, step, confidence, temperature)
    theirs, ours = both
    torch.testing.assert_close(ours.features, theirs.features, atol=1e-3, rtol=0)
    torch.testing.assert_close(ours.predictions, theirs.predictions, atol=1e-3, rtol=0)
    torch.testing.assert_close(confidences[1], confidences[0], atol=1e-3, rtol=0)
    for name in ("slope", "intercepts", "features", "predictions"):
        assert getattr(ours, name).shape == getattr(theirs, name).shape
        assert getattr(ours, name).dtype == getattr(theirs, name).dtype
        torch.testing.assert_close(getattr(ours, name)[:1], getattr(theirs, name)[:1], atol=1e-3, rtol=0)
