"""The kernels compile for a GPU that is not here: every specialisation down to machine code (sm_90)."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import itertools, json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from vllm_client_hook import pack_kernel, predict_kernels

target = GPUTarget("cuda", 90, 32)
KINDS = {
    "valid_ptr": "*u8", "segment_ptr": "*u8", "flags_ptr": "*u8", "explored_ptr": "*u8", "version_ptr": "*i32",
    "words_ptr": "*i32", "records_ptr": "*i32", "head_ptr": "*i32", "totals_ptr": "*i64", "idx_ptr": "*i32",
    "sampled_ptr": "*i32", "rejected_ptr": "*i32", "drafts_ptr": "*i64", "step_ptr": "*i64",
}
done = []

def build(kernel, constants, **kinds):
    kinds = {**KINDS, **kinds}
    signature = {
        name: "constexpr" if name in constants else kinds.get(name, "*fp32" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    compiled = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=constexprs), target=target)
    done.append(len(compiled.asm["cubin"]))

for full in (False, True):
    for dtype, idx in itertools.product(("*fp16", "*bf16", "*fp32"), ("*i32", "*i64")):
        constants = {"BLOCK": predict_kernels.VOCAB_BLOCK, "FULL": full}
        build(predict_kernels._reduce_kernel, constants, logits_ptr=dtype, idx_ptr=idx)
    for per_row, idx in itertools.product((False, True), ("*i32", "*i64")):
        constants = {"PER_ROW_STEP": per_row, "FULL": full, "K": 5, "LANES": 32}
        build(predict_kernels._predict_kernel, constants, idx_ptr=idx)
    for drafts in (False, True):
        constants = {"K": 5, "WORDS": 18 if full else 8, "HAS_DRAFTS": drafts, "FULL": full}
        build(pack_kernel._pack_kernel, constants, drafts_ptr="*i64" if drafts else "*u8")
print(json.dumps(done))
"""


def test_every_specialisation_compiles_to_machine_code():
    root = Path(__file__).parents[2]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(root / "proto"), str(root)])
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    sizes = json.loads(run.stdout.splitlines()[-1])
    assert len(sizes) == 2 * (6 + 4 + 2)
    assert all(sizes)
