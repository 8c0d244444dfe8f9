#!/usr/bin/env bash
# Compile the kernels for training and serving by using them once, so no first request has to wait.
#   deploy/precompile.sh ENVIRONMENT KERNELS      from the repository's root
# They are specific to this machine's processor type; on another type each is recompiled on first use.
set -euo pipefail

export PATH=$1/bin:$PATH NUMBA_CACHE_DIR=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server"; wait; rm -rf "$work"' EXIT

gramophone train quickstart --name mixture --registry "$work/registry" --corpus README.md \
  --set tokenizer.vocab_size=1000 --set train.max_steps=2 --set neural.hidden_size=64 --set neural.embedding_size=64
gramophone train ngram --name bytes --registry "$work/registry" --corpus README.md --set ngram.quantize_bits=8

# serve PRECISION: serve every model, networks in one precision
serve() {
  local port patience=600
  port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  url=http://127.0.0.1:$port
  GRAMOPHONE_PRECISION=$1 GRAMOPHONE_REGISTRY=$work/registry GRAMOPHONE_PORT=$port GRAMOPHONE_LOG_LEVEL=error \
    gramophone serve &
  server=$!
  until python -c "import urllib.request as u; u.urlopen('$url/health/ready', timeout=3)" 2>/dev/null; do
    kill -0 "$server" # else it has exited with a message
    ((patience--)) || { echo 'precompile.sh: the service did not become ready' >&2; exit 1; }
    sleep 0.5
  done
}

# load URL OPTIONS...: send some requests one by one, and some concurrently
load() {
  for clients in 1 8; do
    gramophone bench "$@" --clients "$clients" --requests 16 --warmup 0s >"$work/report" || { cat "$work/report" >&2; exit 1; }
  done
}

models='mixture lstm ngram'
for precision in int8 float32; do
  serve "$precision"
  load "$url/v1/autocomplete" --body "$here/load_test/autocomplete.jsonl"
  load "$url/v1/check" --body "$here/load_test/check.jsonl"
  for model in $models; do
    for workload in next-token score rerank generate completions; do
      load "$url" --model "$model" --workload "$workload"
    done
  done
  kill "$server"
  wait "$server" || true
  server=
  models='mixture lstm' # n-grams have no precision
done
