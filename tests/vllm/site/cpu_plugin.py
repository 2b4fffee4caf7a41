"""A general plugin for tests alone: lets vLLM run adaptive verification on a CPU, and watches it independently.

ACCEPTD_TEST_COSTS picks the cost tables that a GPU would have measured: "flat" (verifying more costs nothing: never
trims) or "steep" (each verified token costs: trims). ACCEPTD_TEST_RANK1 has tensor-parallel rank 1 misbehave: "late"
(copies off the device seem to finish late, after `collective_rpc("late")`), "missing" (no hook there) or "option"
(another setting there).
ACCEPTD_TEST_BUDGET watches the budget (`budget_watch.py`).
ACCEPTD_TEST_BREAK replaces vLLM's estimator class: "missing" or "signature".
"""

import hashlib
import os

#: (size, milliseconds) samples of the draft and of the target.
DRAFT_CURVE = [(1, 0.5), (64, 0.5)]
VERIFY_CURVES = {
    "flat": [(1, 1.0), (4096, 1.0)],
    "steep": [(n, 1.0 + 0.04 * n) for n in (*range(1, 65), 128, 4096)],
}


class Watch:
    """What the target decided, counted here and not by the hook.

    observed, accepted: by tag of the request, a count for each position. coefficients: after each step, the version and
    a digest of what the kernels read.
    """

    def __init__(self) -> None:
        self.tags: dict[int, str] = {}
        self.observed: dict[str, list[int]] = {}
        self.accepted: dict[str, list[int]] = {}
        self.blocks: dict[str, int] = {}
        self.verified = 0
        self.admissions: dict[str, int] = {}
        self.coefficients: list[tuple[str, str]] = []

    def verdict(self, positions: int, slots: list[int], sampled: list[int], rejected: list[int]) -> None:
        for slot, emitted, refused in zip(slots, sampled, rejected, strict=True):
            passed = max(emitted - 1, 0)
            verified = passed + refused
            if slot < 0 or verified == 0:
                continue
            tag = self.tags.get(slot, "")
            observed = self.observed.setdefault(tag, [0] * positions)
            accepted = self.accepted.setdefault(tag, [0] * positions)
            self.blocks[tag] = self.blocks.get(tag, 0) + 1
            self.verified += verified if tag == "" else 0
            for k in range(positions):
                observed[k] += k <= passed and k < verified
                accepted[k] += k < passed

    def plain(self) -> dict[str, object]:
        return {
            "observed": self.observed,
            "accepted": self.accepted,
            "blocks": self.blocks,
            "verified": self.verified,
            "admissions": self.admissions,
            "coefficients": self.coefficients,
        }


WATCH = Watch()


def register() -> None:
    _interpreter()
    _adaptive_verification()
    _break_estimator(os.environ.get("ACCEPTD_TEST_BREAK", ""))
    _watch()
    _misbehave(os.environ.get("ACCEPTD_TEST_RANK1", ""))
    _watch_budget(os.environ.get("ACCEPTD_TEST_BUDGET", ""))


def _interpreter() -> None:
    from vllm.triton_utils import tl, tldevice

    # The interpreter knows no device library: its log1p returns None.
    tldevice.log1p = lambda x: tl.log(1 + x)


def _adaptive_verification() -> None:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification

    VllmConfig._validate_adaptive_verification = lambda self: None
    adaptive_verification.get_query_lens_mismatch_unsupported_backend = lambda *args, **kwargs: None
    adaptive_verification.get_varlen_cudagraph_unsupported_backend = lambda *args, **kwargs: None
    adaptive_verification._assign_draft_token_budget_compiled = adaptive_verification._assign_draft_token_budget
    model_runner.resolve_adaptive_cudagraph_mode = lambda mode, **kwargs: mode
    create = adaptive_verification.maybe_create_adaptive_verification_manager

    def create_with_costs(**kwargs):
        manager = create(**kwargs)
        if manager is not None:
            manager.set_cost_curves(DRAFT_CURVE, VERIFY_CURVES[os.environ.get("ACCEPTD_TEST_COSTS", "flat")])
        return manager

    model_runner.maybe_create_adaptive_verification_manager = create_with_costs


def _watch() -> None:
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
    from vllm.v1.worker.gpu_worker import Worker

    add_request = Sampler.add_request
    observe = DraftModelSpeculator.observe_verification

    def tagging(self, req_idx, sampling_params):
        tag = (sampling_params.extra_args or {}).get("tag", "")
        WATCH.tags[req_idx] = tag
        WATCH.admissions[tag] = WATCH.admissions.get(tag, 0) + 1
        return add_request(self, req_idx, sampling_params)

    def counting(self, idx_mapping, num_sampled, num_rejected):
        WATCH.verdict(self.num_speculative_steps, idx_mapping.tolist(), num_sampled.tolist(), num_rejected.tolist())
        observe(self, idx_mapping, num_sampled, num_rejected)
        applied = getattr(self.acceptance_estimator, "apply", None)
        if applied is not None:
            digest = hashlib.sha256(applied.words.numpy().tobytes()).hexdigest()[:16]
            WATCH.coefficients.append((str(applied.in_force.version), digest))

    Sampler.add_request = tagging
    DraftModelSpeculator.observe_verification = counting

    def watched(self):
        import copy
        import threading

        estimator = self.model_runner.speculator.acceptance_estimator
        return copy.deepcopy(WATCH.plain()) | {
            "estimator": f"{type(estimator).__module__}.{type(estimator).__name__}",
            "threads": sorted(thread.name for thread in threading.enumerate()),
        }

    Worker.watched = watched


def _break_estimator(how: str) -> None:
    from vllm.v1.worker.gpu.spec_decode import speculator

    stock = speculator.OnlineAcceptanceEstimator
    if how == "missing":
        del speculator.OnlineAcceptanceEstimator
    elif how == "signature":

        class OnlineAcceptanceEstimator(stock):
            def predict(self, logits, idx_mapping, draft_step, confidence_probs, temperature, bias=None):
                super().predict(logits, idx_mapping, draft_step, confidence_probs, temperature)

        speculator.OnlineAcceptanceEstimator = OnlineAcceptanceEstimator


def _watch_budget(how: str) -> None:
    if how:
        import budget_watch

        budget_watch.install(how)


def _misbehave(how: str) -> None:
    if not how:
        return
    from dataclasses import replace

    from vllm.distributed.parallel_state import get_tp_group
    from vllm.v1.worker.gpu_worker import Worker

    from vllm_client_hook import estimator
    from vllm_client_hook.patch_estimator import EstimatorFactory

    construct = EstimatorFactory.__call__
    streams_of = estimator.streams_of

    def constructing(self, *args):
        if get_tp_group().rank_in_group == 1:
            if how == "missing":
                return self.stock(*args)
            if how == "option":
                self.settings = replace(self.settings, workload="another")
        return construct(self, *args)

    def late_streams(device):
        streams = streams_of(device)
        return Late(streams) if how == "late" and get_tp_group().rank_in_group == 1 else streams

    def late(self):
        LateEvent.late = True

    Worker.late = late
    EstimatorFactory.__call__ = constructing
    estimator.streams_of = late_streams


class Late:
    """Streams whose copies seem to take many steps, and whose `synchronize` really waits."""

    def __init__(self, streams) -> None:
        self._streams = streams

    def __getattr__(self, name):
        return getattr(self._streams, name)

    def record(self):
        return LateEvent()


class LateEvent:
    late = False

    def __init__(self) -> None:
        self._queries = 0

    def query(self) -> bool:
        self._queries += 1
        return not self.late or self._queries > 20

    def synchronize(self) -> None:
        import time

        if self.late:
            time.sleep(0.1)
