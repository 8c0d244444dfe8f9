#!/usr/bin/env bash
# Install Gramophone's dependencies (requirements.txt) into a separate, minimal environment: no pip, no tests of
# libraries, bytecode only for imported modules. The image's first stage and tests/deploy run this.
#   deploy/install.sh ENVIRONMENT [cpu|cuda]
# pip's own variables choose the package index: PIP_INDEX_URL, PIP_EXTRA_INDEX_URL.
set -euo pipefail

environment=$1 variant=${2:-cpu}
if [[ $variant != cpu && $variant != cuda ]]; then
  echo "install.sh: the variant is '$variant'; it must be cpu or cuda" >&2
  exit 2
fi

python3 -m venv --without-pip "$environment"
python=$environment/bin/python
python3 -m pip --python "$python" install --quiet --no-cache-dir --no-compile --root-user-action=ignore \
  --requirement "$(dirname "$0")/requirements.txt"

# torch's files for building extensions, and all libraries' tests: a quarter of a gigabyte
libraries=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
rm -rf "$libraries"/torch/{include,share,test}
find "$libraries/torch/bin" -mindepth 1 ! -name torch_shm_manager -delete
find "$libraries" -type d -name tests -prune -exec rm -rf {} +

# importing writes the bytecode, so a service need not compile it at each start
"$python" -c 'import fastapi, hunspell, matplotlib.pyplot, numba, rapidfuzz, rich, s3fs, sentencepiece, torch, typer'
cuda=$("$python" -c 'import torch; print(torch.version.cuda or "")')
if [[ $variant == cuda && -z $cuda ]]; then
  echo "install.sh: this torch has no CUDA: leave out indexes with CPU wheels, or build the variant cpu" >&2
  exit 1
fi
if [[ $variant == cpu && -n $cuda ]]; then
  echo "install.sh: torch brought gigabytes of CUDA libraries along: name an index that has its CPU wheel" \
    "(build argument PIP_EXTRA_INDEX_URL)" >&2
fi
