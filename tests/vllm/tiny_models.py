"""Tiny models for engine tests: a random two-layer Llama as target, and drafts that it accepts some of the time.

The draft is the target without its second layer and with a little noise on its head, so acceptance is real and mixed.
Vocabulary 320 with a byte-level tokenizer: every text is valid and one token is one byte.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY = 320
HIDDEN = 64
HEADS = 2
INTERMEDIATE = 128
EOS = 256


def llama_config(layers: int, **more: object) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
        **more,
    }


def layer(generator: torch.Generator, prefix: str, strength: float) -> dict[str, torch.Tensor]:
    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (scale / columns**0.5)

    return {
        f"{prefix}.self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN),
        f"{prefix}.self_attn.k_proj.weight": matrix(HIDDEN, HIDDEN),
        f"{prefix}.self_attn.v_proj.weight": matrix(HIDDEN, HIDDEN),
        f"{prefix}.self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN, strength),
        f"{prefix}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE, strength),
        f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
    }


def target_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=generator),
        "model.norm.weight": torch.ones(HIDDEN),
        # Norms are 1 after the last RMSNorm, so logits have standard deviation 2.5: from flat to nearly certain.
        "lm_head.weight": torch.randn(VOCABULARY, HIDDEN, generator=generator) * (2.5 / HIDDEN**0.5),
    }
    weights |= layer(generator, "model.layers.0", strength=1.0)
    weights |= layer(generator, "model.layers.1", strength=0.5)
    return weights


def draft_weights(target: dict[str, torch.Tensor], seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {name: value.clone() for name, value in target.items() if ".layers.1." not in name}
    head = weights["lm_head.weight"]
    weights["lm_head.weight"] = head + torch.randn(head.shape, generator=generator) * (0.6 / HIDDEN**0.5)
    return weights


def write_model(path: Path, config: dict[str, object], weights: dict[str, torch.Tensor]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    save_file({k: v.contiguous().to(torch.float32) for k, v in weights.items()}, path / "model.safetensors")
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate(alphabet)}
    for index in range(len(alphabet), VOCABULARY):
        vocabulary[f"<|extra{index}|>"] = index
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": f"<|extra{EOS}|>",
                "model_max_length": 512,
            }
        )
    )


def write_pair(directory: Path) -> tuple[Path, Path]:
    """(target, draft): directories that vLLM loads."""
    target = target_weights()
    return (
        write_model(directory / "tiny-target", llama_config(2), target),
        write_model(directory / "tiny-draft", llama_config(1), draft_weights(target)),
    )


def write_eagle(directory: Path) -> tuple[Path, Path]:
    """(target, EAGLE head): one layer over the token's embedding and the target's hidden state, sharing its head."""
    target = target_weights()
    head = {
        name.replace("model.layers.0", "layers.0"): value
        for name, value in target.items()
        if ".layers.0." in name and "input_layernorm" not in name
    }
    # The embedding alone passes: the head then is the target's first layer, which the target often agrees with.
    head["fc.weight"] = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1)
    return (
        write_model(directory / "tiny-target", llama_config(2), target),
        write_model(directory / "tiny-eagle", llama_config(1), head),
    )


def write_dflash(directory: Path) -> tuple[Path, Path]:
    """(target, block-parallel drafter): one Qwen3-shaped layer that fills K masked places in one pass."""
    generator = torch.Generator().manual_seed(2)
    heads = {f"layers.0.self_attn.{name}_norm.weight": torch.ones(HIDDEN // HEADS) for name in ("q", "k")}
    weights = layer(generator, "layers.0", strength=1.0) | heads
    weights |= {"norm.weight": torch.ones(HIDDEN), "hidden_norm.weight": torch.ones(HIDDEN)}
    weights["fc.weight"] = torch.randn(HIDDEN, 2 * HIDDEN, generator=generator) / (2 * HIDDEN) ** 0.5
    config = llama_config(
        1,
        architectures=["DFlashDraftModel"],
        model_type="qwen3",
        # Causal, since the CPU's attention knows nothing else; the layout of its calls is the same.
        dflash_config={"mask_token_id": 300, "target_layer_ids": [0, 1], "causal": True},
    )
    return (
        write_model(directory / "tiny-target", llama_config(2), target_weights()),
        write_model(directory / "tiny-dflash", config, weights),
    )


if __name__ == "__main__":
    import sys

    print(*write_pair(Path(sys.argv[1])))
