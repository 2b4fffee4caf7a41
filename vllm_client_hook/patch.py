"""The only file that knows vLLM's insides.

Two names are replaced, once the modules they live in are loaded: `OnlineAcceptanceEstimator` in the speculator's
module, by a factory that decides for each worker between vLLM's class and ours; and methods of `Worker`, to bind the
pieces after load and to follow sleep, wake and weight updates. Everything else is attached to the instances.
"""

from __future__ import annotations

import functools
import logging
import sys
import zlib
from typing import TYPE_CHECKING, Any, Final

from acceptd import __version__
from acceptd.errors import AcceptdError, HookError, UnsupportedVllm
from acceptd.types import PairKey
from vllm_client_hook import config, gate
from vllm_client_hook.imports import after_import
from vllm_client_hook.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from vllm_client_hook.config import HookSettings

logger = logging.getLogger("vllm.acceptd")

SPECULATOR: Final = "vllm.v1.worker.gpu.spec_decode.speculator"
WORKER: Final = "vllm.v1.worker.gpu_worker"
SAMPLER: Final = "vllm.v1.worker.gpu.sample.sampler"

_LINK: Final = "_acceptd_link"


def install(settings: HookSettings) -> None:
    """Arranges the replacements. Costs a process that never loads a worker nothing."""
    after_import(SPECULATOR, functools.partial(_guarded, _replace_estimator, settings))
    after_import(WORKER, functools.partial(_guarded, _extend_worker, settings))


def _guarded(action: Callable[[ModuleType, HookSettings], None], settings: HookSettings, module: ModuleType) -> None:
    try:
        action(module, settings)
    except Exception as error:
        logger.warning("acceptd %s: not active: %s", __version__, error)


def _replace_estimator(module: ModuleType, settings: HookSettings) -> None:
    stock = getattr(module, "OnlineAcceptanceEstimator", None)
    if isinstance(stock, EstimatorFactory):
        return
    if stock is None:
        raise UnsupportedVllm("this vLLM has no OnlineAcceptanceEstimator")
    found = {name: gate.parameters_of(stock, name.rpartition(".")[2]) for name in gate.ESTIMATOR}
    gate.require_signatures(found, gate.ESTIMATOR)
    module.OnlineAcceptanceEstimator = EstimatorFactory(stock, settings)  # type: ignore[attr-defined]


class EstimatorFactory:
    """Stands where vLLM's class stood. Called inside `load_model`, once a worker, with that class's arguments.

    stock: vLLM's class. Whatever goes wrong, and on any difference between the tensor-parallel ranks, the worker gets
    an instance of it. verdict: why, or "" if ours is active; None before the first call.
    """

    constructions = 0

    def __init__(self, stock: Any, settings: HookSettings) -> None:
        self.stock = stock
        self.settings = settings
        self.verdict: str | None = None

    def __call__(self, max_num_reqs: int, num_speculative_steps: int, device: Any) -> Any:
        """The estimator of one worker."""
        try:
            estimator = self._decide(max_num_reqs, num_speculative_steps, device)
        except Exception as error:
            self.verdict = str(error) if isinstance(error, AcceptdError) else f"{type(error).__name__}: {error}"
            estimator = None
        return self.stock(max_num_reqs, num_speculative_steps, device) if estimator is None else estimator

    def _decide(self, max_num_reqs: int, num_speculative_steps: int, device: Any) -> Any:
        from vllm_client_hook import patch_budget  # noqa: PLC0415 (torch: only where a worker loads)
        from vllm_client_hook.ranks import agree  # noqa: PLC0415

        vllm_config = _current_config()
        ranks, store, name = _tensor_parallel()
        estimator, reason = None, ""
        try:
            settings = config.with_additional(self.settings, getattr(vllm_config, "additional_config", None))
            if not settings.enabled:
                raise HookError("switched off (enabled = false)")
            gate.require_signatures(_binding_signatures(), gate.BINDING)
            pair_key(vllm_config, settings).validate()
            # Built before the ranks agree, so that a rank that cannot build says so in time.
            estimator = _ours()(max_num_reqs, num_speculative_steps, device, full_features=settings.features == "full")
            self.effective = settings
        except Exception as error:
            settings = self.settings
            reason = str(error) if isinstance(error, AcceptdError) else f"{type(error).__name__}: {error}"
        EstimatorFactory.constructions += 1
        options = {
            "hook": __version__,
            "K": num_speculative_steps,
            "refused": reason,
            "features": settings.features,
            "workload": settings.workload,
            "rank0_confidences": settings.rank0_confidences,
            "budget": patch_budget.unsupported(),
        }
        disagreement = agree(
            ranks,
            store,
            f"acceptd/{name}/{EstimatorFactory.constructions}",
            options,
            timeout_seconds=settings.agreement_timeout,
        )
        self.verdict = reason or disagreement
        return None if self.verdict else estimator


def _extend_worker(module: ModuleType, settings: HookSettings) -> None:
    worker: Any = module.Worker
    if getattr(worker, _LINK, False) is None:
        return
    setattr(worker, _LINK, None)
    _after(worker, "load_model", lambda self, *_, **__: _bind(self, settings))
    _after(worker, "initialize_from_config", lambda self, *_, **__: _bind_budget(self))
    _before(worker, "sleep", lambda self, *_, **__: _of(self, "before_sleep"))
    _after(worker, "wake_up", lambda self, tags=None, **__: _of(self, "after_wake") if _wakes_weights(tags) else None)
    _after(worker, "reload_weights", lambda self, *_, **__: _of(self, "weights_changed"))
    _after(worker, "finish_weight_update", lambda self, *_, **__: _of(self, "weights_changed"))
    _before(worker, "shutdown", lambda self, *_, **__: _of(self, "close"))

    def acceptd_flush(self: Any, timeout: float = 5.0) -> dict[str, Any]:
        """For `collective_rpc`: sends what is pending; seconds to wait for the service's answers."""
        link = getattr(self, _LINK, None)
        return {"active": False} if link is None else link.flush(timeout)

    def acceptd_status(self: Any) -> dict[str, Any]:
        """For `collective_rpc`: what this rank holds and counted."""
        link = getattr(self, _LINK, None)
        return {"active": False} if link is None else link.status()

    worker.acceptd_flush = acceptd_flush
    worker.acceptd_status = acceptd_status


def _bind(worker: Any, settings: HookSettings) -> None:
    """After load: links estimator, sampler, request states and the service, and says whether the hook is active."""
    speculator = getattr(worker.model_runner, "speculator", None)
    estimator = getattr(speculator, "acceptance_estimator", None)
    ranks, store, name = _tensor_parallel()
    if estimator is None or not isinstance(estimator, _ours()):
        why = _why_not(speculator)
        if ranks.rank == 0 and why:
            logger.info("acceptd %s: not active: %s", __version__, why)
        return
    from vllm_client_hook.ranks import agree  # noqa: PLC0415 (torch: only where a worker loads)

    effective = _factory().effective
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
    setattr(worker, _LINK, link)
    if link.uplink is not None:
        link.uplink.start()
        key = pair_key(worker.vllm_config, effective)
        logger.info("acceptd %s: active for pair %s, service at %s", __version__, key.id, effective.address)


def _linked(worker: Any, estimator: Any, ranks: Any) -> Link:
    """The estimator bound to sampler, request states and, on rank 0, the service."""
    from vllm_client_hook.seams import Unserved  # noqa: PLC0415 (only where a worker loads)

    runner = worker.model_runner
    effective = _factory().effective
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
    sampler.add_request = _admitting(sampler.add_request, estimator, custom=_custom_processors(sampler))
    return Link(estimator, uplink, rank=ranks.rank)


def _bind_budget(worker: Any) -> None:
    """Once the manager exists: puts our budget into it, or says why vLLM's own decides."""
    from vllm_client_hook import patch_budget  # noqa: PLC0415 (torch: only where a worker loads)
    from vllm_client_hook.streams import streams_of  # noqa: PLC0415

    link = getattr(worker, _LINK, None)
    manager = getattr(worker.model_runner, "adaptive_verification", None)
    if link is None or manager is None:
        return
    rank, _, _ = _tensor_parallel()
    reason = patch_budget.unsupported()
    if reason:
        if rank.rank == 0:
            logger.warning("acceptd %s: vLLM's own budget decides: %s", __version__, reason)
        return
    effective = _factory().effective
    link.budget = patch_budget.attach(
        manager,
        link.estimator,
        rank,
        streams_of(link.estimator.device),
        uplink=link.uplink,
        seed=zlib.crc32(pair_key(worker.vllm_config, effective).id.encode()),
        rank0_confidences=effective.rank0_confidences,
    )


def _admitting(add_request: Any, estimator: Any, *, custom: bool) -> Any:
    """`Sampler.add_request`, whose arguments differ between releases, followed by our own note of the request."""
    from inspect import signature  # noqa: PLC0415 (used once, at load)

    shape = signature(add_request)
    if not {"req_idx", "sampling_params"} <= set(shape.parameters):
        raise UnsupportedVllm(f"this engine's sampler takes requests as {shape}")
    failed = False

    @functools.wraps(add_request)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = add_request(*args, **kwargs)
        try:
            given = shape.bind(*args, **kwargs).arguments
            estimator.admit(given["req_idx"], given["sampling_params"], custom_processors=custom)
        except Exception as error:
            # Said once: it would come with every request. No verdict is graded on flags that may be another's.
            nonlocal failed
            if not failed:
                failed = True
                logger.exception("acceptd: a request could not be noted; this worker no longer reports")
                estimator.frozen = f"admission: {type(error).__name__}: {error}"
        return result

    return wrapper


def pair_key(vllm_config: Any, settings: HookSettings) -> PairKey:
    """The pair that this engine's target and draft are."""
    model, speculative = vllm_config.model_config, vllm_config.speculative_config
    draft = speculative.draft_model_config
    return PairKey(
        target=settings.target_name or _name(model.model),
        draft=settings.draft_name or _name(draft.model if draft is not None else model.model),
        num_speculative_tokens=speculative.num_speculative_tokens,
        method=speculative.method,
        draft_sampling=speculative.draft_sample_method,
        target_revision=_revision(model),
        draft_revision=_revision(draft),
        quantization=_quantization(model, draft),
    )


def _name(model: str) -> str:
    """A hub name as it is; of a path, which differs between machines, the last part."""
    name = model.rstrip("/")
    return name.rsplit("/", 1)[-1] if name.startswith(("/", "./", "../", "~")) else name


def _revision(model: Any) -> str:
    """The revision asked for, or a hash of the model's configuration."""
    import hashlib  # noqa: PLC0415 (used once, at load)
    import json  # noqa: PLC0415

    if model is None:
        return ""
    if model.revision:
        return str(model.revision)
    described = {key: value for key, value in model.hf_config.to_dict().items() if key not in _PLACE_KEYS}
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:12]


#: Keys of a Hugging Face configuration that say where it came from and not what it is.
_PLACE_KEYS: Final = frozenset({"_name_or_path", "transformers_version"})


def _quantization(model: Any, draft: Any) -> str:
    both = [str(getattr(one, "quantization", None) or "") for one in (model, draft)]
    return "+".join(both) if any(both) else ""


def _uplink(key: PairKey, settings: HookSettings, vllm_config: Any) -> Any:
    import vllm  # noqa: PLC0415 (present: it loaded us)

    from acceptd.limits import MAX_KNOTS  # noqa: PLC0415 (beside its only user)
    from acceptd.segments import MAX_SEGMENTS  # noqa: PLC0415
    from vllm_client_hook.channel import Identity  # noqa: PLC0415 (gRPC: only where it is needed)
    from vllm_client_hook.uplink import Capabilities, Uplink  # noqa: PLC0415

    parallel = vllm_config.parallel_config
    replica = f"/dp{parallel.data_parallel_index}" if parallel.data_parallel_size > 1 else ""
    return Uplink(
        settings.address,
        key,
        worker=f"{settings.worker_name}{replica}",
        workload=settings.workload,
        capabilities=Capabilities(MAX_KNOTS, MAX_SEGMENTS),
        identity=Identity(settings.token_file, settings.ca_file, settings.cert_file, settings.key_file),
        vllm_version=str(vllm.__version__),
        log=logger,
    )


def _tensor_parallel() -> tuple[Any, Any, str]:
    """The group as this rank sees it, its key-value store, and a name that is equal on its ranks alone."""
    from torch.distributed import distributed_c10d  # noqa: PLC0415 (torch: only where a worker loads)
    from vllm.distributed.parallel_state import get_tp_group  # noqa: PLC0415

    from vllm_client_hook.ranks import GroupRanks, SingleRank  # noqa: PLC0415

    group = get_tp_group()
    if group.world_size == 1:
        return SingleRank(), None, "single"
    ranks = GroupRanks(group.rank_in_group, group.world_size, lambda tensor: group.broadcast(tensor, src=0))
    return ranks, distributed_c10d._get_default_store(), "-".join(map(str, group.ranks))


def _current_config() -> Any:
    from vllm.config import get_current_vllm_config  # noqa: PLC0415 (a worker has loaded it)

    return get_current_vllm_config()


def _ours() -> Any:
    from vllm_client_hook.estimator import AcceptanceEstimator  # noqa: PLC0415 (torch: only where a worker loads)

    return AcceptanceEstimator


def _factory() -> Any:
    return sys.modules[SPECULATOR].OnlineAcceptanceEstimator


def _why_not(speculator: Any) -> str:
    """Why a loaded worker has vLLM's own estimator, or none; "" if that was said before."""
    module = sys.modules.get(SPECULATOR)
    factory = getattr(module, "OnlineAcceptanceEstimator", None)
    if module is None:
        return "this worker does not run Model Runner V2"
    if not isinstance(factory, EstimatorFactory):
        return ""  # said when its module was loaded
    if factory.verdict:
        return factory.verdict
    if speculator is None:
        return "no speculative decoding"
    if not getattr(speculator, "enable_adaptive_verification", False):
        return "adaptive verification is off"
    return "the drafter scores its own tokens (confidence head)"


def _binding_signatures() -> dict[str, tuple[str, ...] | None]:
    speculator, sampler = sys.modules.get(SPECULATOR), sys.modules.get(SAMPLER)
    owners = {
        "DraftModelSpeculator": getattr(speculator, "DraftModelSpeculator", None),
        "Sampler": getattr(sampler, "Sampler", None),
    }
    return {name: gate.parameters_of(owners[name.partition(".")[0]], name.rpartition(".")[2]) for name in gate.BINDING}


def _standard_rejection(runner: Any) -> bool:
    """Whether verification is the per-token test of vLLM's own sampler; a sampler we do not know is not."""
    rejection = runner.rejection_sampler
    method = getattr(runner.speculative_config, "rejection_sample_method", "")
    return type(rejection).__name__ == "RejectionSampler" and method == "standard"


def _custom_processors(sampler: Any) -> bool:
    """Whether any logits processor is not vLLM's own."""
    own = SAMPLER.rpartition(".")[0]
    # 0.30 takes none, and has no list of them.
    processors = getattr(sampler, "logits_processors", ())
    return any(not type(processor).__module__.startswith(own) for processor in processors)


def _wakes_weights(tags: Any) -> bool:
    return tags is None or "weights" in tags


def _of(worker: Any, method: str) -> None:
    link = getattr(worker, _LINK, None)
    if link is not None:
        getattr(link, method)()


def _after(owner: Any, name: str, action: Callable[..., None]) -> None:
    """Has `action` run with the method's arguments once the method has returned; it can neither raise nor answer."""
    _wrap(owner, name, action, first=False)


def _before(owner: Any, name: str, action: Callable[..., None]) -> None:
    _wrap(owner, name, action, first=True)


def _wrap(owner: Any, name: str, action: Callable[..., None], *, first: bool) -> None:
    method = getattr(owner, name, None)
    if method is None:
        return  # a release without it has nothing to follow there

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if first:
            _quietly(action, name, self, *args, **kwargs)
        result = method(self, *args, **kwargs)
        if not first:
            _quietly(action, name, self, *args, **kwargs)
        return result

    setattr(owner, name, wrapper)


def _quietly(action: Callable[..., None], name: str, *args: Any, **kwargs: Any) -> None:
    try:
        action(*args, **kwargs)
    except Exception:
        logger.exception("acceptd: what follows %s failed; vLLM goes on", name)
