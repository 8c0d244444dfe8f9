#!/usr/bin/env bash
# Mixed client traffic at a given rate for a given time: one `gramophone bench` per kind of request, all concurrent.
# Prints the results of each; fails if a kind got no replies.
#   deploy/load_test/run.sh URL [REQUESTS_A_SECOND [TIME]]      by default 50 per second for 60s
# GRAMOPHONE_API_KEY is sent if set. The n-th seconds of two runs are identical.
set -euo pipefail

url=${1:?"give the service's address, such as http://127.0.0.1:8000"}
rate=${2:-50}
duration=${3:-60s}
here=$(cd "$(dirname "$0")" && pwd)
results=$(mktemp -d)
declare -A kinds=() # by process id
trap 'rm -rf "$results"' EXIT
trap 'kill "${!kinds[@]}" 2>/dev/null || true; exit 130' INT TERM

# load KIND PERCENT OPTIONS...: start one kind with its share of all requests
load() {
  local kind=$1 hundredths=$((rate * $2)) share
  shift 2
  printf -v share '%d.%02d' $((hundredths / 100)) $((hundredths % 100))
  gramophone bench "$@" --rate "$share" --duration "$duration" >"$results/$kind" 2>&1 &
  kinds[$!]=$kind
}

# requests at each keystroke are the most frequent; mistakes are answered 400 and 404
load next-token 36 "$url" --workload next-token
load autocomplete 20 "$url/v1/autocomplete" --body "$here/autocomplete.jsonl"
load score 20 "$url" --workload score
load check 6 "$url/v1/check" --body "$here/check.jsonl"
load rerank 6 "$url" --workload rerank --items 20
load generate 6 "$url" --workload generate --max-tokens 16
load completions 4 "$url" --workload completions --max-tokens 16
load mistakes 2 "$url/v1/score" --body "$here/mistakes.jsonl"

failed=()
for process in "${!kinds[@]}"; do
  kind=${kinds[$process]}
  if ! wait "$process" && [[ $kind != mistakes ]]; then
    failed+=("$kind")
  fi
done
for kind in next-token autocomplete score check rerank generate completions mistakes; do
  printf '== %s\n' "$kind"
  cat "$results/$kind"
done
if ((${#failed[@]})); then
  echo "run.sh: no answer to ${failed[*]}" >&2
  exit 1
fi
