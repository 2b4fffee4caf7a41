"""Links a loaded worker's estimator with its sampler, its request states, its budget and the service."""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING, Any

from acceptd import __version__
from vllm_client_hook.admission import admitting, custom_processors
from vllm_client_hook.engine_pair import pair_key
from vllm_client_hook.link import LINK_ATTRIBUTE, Link, link_of
from vllm_client_hook.patch_estimator import EstimatorFactory, current_factory, our_class, why_stock
from vllm_client_hook.ranks import agree
from vllm_client_hook.seams import Unserved
from vllm_client_hook.tensor_parallel import own_group

if TYPE_CHECKING:
    from acceptd.types import PairKey
    from vllm_client_hook.config import HookSettings

logger = logging.getLogger("vllm.acceptd")


def bind(worker: Any) -> None:
    """After load: links estimator, sampler, request states and the service, and says whether the hook is active."""
    speculator = getattr(worker.model_runner, "speculator", None)
    estimator = getattr(speculator, "acceptance_estimator", None)
    ranks, store, name = own_group()
    if estimator is None or not isinstance(estimator, our_class()):
        why = why_stock(speculator)
        if ranks.rank == 0 and why:
            logger.info("acceptd %s: not active: %s", __version__, why)
        return
    effective = current_factory().effective
    link, reason = None, ""
    try:
        link = _linked(worker, estimator, ranks)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    # A rank that failed here alone would leave the others waiting for it in their first broadcast.
    disagreement = agree(
        ranks,
        store,
        f"acceptd/{name}/{EstimatorFactory.constructions}/bound",
        {"refused": reason},
        timeout_seconds=effective.agreement_timeout,
    )
    if link is None or disagreement:
        estimator.unbind()
        why = reason or disagreement
        logger.warning("acceptd %s: predicts with the prior, reports nothing: %s", __version__, why)
        return
    setattr(worker, LINK_ATTRIBUTE, link)
    if link.uplink is not None:
        link.uplink.start()
        key = pair_key(worker.vllm_config, effective)
        logger.info("acceptd %s: active for pair %s, service at %s", __version__, key.id, effective.address)


def _linked(worker: Any, estimator: Any, ranks: Any) -> Link:
    """The estimator bound to sampler, request states and, on rank 0, the service."""
    runner = worker.model_runner
    effective = current_factory().effective
    uplink = None
    if ranks.rank == 0:
        try:
            uplink = _uplink(pair_key(worker.vllm_config, effective), effective, worker.vllm_config)
        except Exception:
            logger.exception("acceptd %s: no uplink; the worker goes on with its own rounds", __version__)
    estimator.bind(
        ranks=ranks,
        uplink=uplink or (Unserved() if ranks.rank == 0 else None),
        live=lambda: getattr(runner.adaptive_verification, "cost_tables", None) is not None,
        draft_tokens=runner.req_states.draft_tokens,
        standard_rejection=_standard_rejection(runner),
    )
    sampler = runner.sampler
    sampler.add_request = admitting(sampler.add_request, estimator, custom=custom_processors(sampler))
    return Link(estimator, uplink, rank=ranks.rank)


def bind_budget(worker: Any) -> None:
    """Once the manager exists: puts our budget into it, or says why vLLM's own decides."""
    from vllm_client_hook import patch_budget  # noqa: PLC0415 (torch: only where a worker loads)
    from vllm_client_hook.streams import streams_of  # noqa: PLC0415

    link = link_of(worker)
    manager = getattr(worker.model_runner, "adaptive_verification", None)
    if link is None or manager is None:
        return
    rank, _, _ = own_group()
    reason = patch_budget.unsupported()
    if reason:
        if rank.rank == 0:
            logger.warning("acceptd %s: vLLM's own budget decides: %s", __version__, reason)
        return
    effective = current_factory().effective
    link.budget = patch_budget.attach(
        manager,
        link.estimator,
        rank,
        streams_of(link.estimator.device),
        uplink=link.uplink,
        seed=zlib.crc32(pair_key(worker.vllm_config, effective).id.encode()),
        rank0_confidences=effective.rank0_confidences,
    )


def _standard_rejection(runner: Any) -> bool:
    """Whether verification is the per-token test of vLLM's own sampler; a sampler we do not know is not."""
    rejection = runner.rejection_sampler
    method = getattr(runner.speculative_config, "rejection_sample_method", "")
    return type(rejection).__name__ == "RejectionSampler" and method == "standard"


def _uplink(key: PairKey, settings: HookSettings, vllm_config: Any) -> Any:
    import vllm  # noqa: PLC0415 (present: it loaded us)

    from acceptd.limits import MAX_KNOTS  # noqa: PLC0415 (beside its only user)
    from acceptd.segments import MAX_SEGMENTS  # noqa: PLC0415
    from vllm_client_hook.uplink import Capabilities, Uplink  # noqa: PLC0415 (gRPC: only where it is needed)

    parallel = vllm_config.parallel_config
    replica = f"/dp{parallel.data_parallel_index}" if parallel.data_parallel_size > 1 else ""
    return Uplink(
        settings.address,
        key,
        worker=f"{settings.worker_name}{replica}",
        workload=settings.workload,
        capabilities=Capabilities(MAX_KNOTS, MAX_SEGMENTS),
        identity=settings.identity,
        vllm_version=str(vllm.__version__),
        log=logger,
    )
