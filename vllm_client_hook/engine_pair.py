"""The pair whose coefficients a vLLM engine needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from acceptd.types import PairKey

if TYPE_CHECKING:
    from vllm_client_hook.config import HookSettings


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
