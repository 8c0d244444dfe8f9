#!/usr/bin/env bash
# A mixture of what clients ask, at a stated rate for a stated time: `gramophone bench` once for each kind of request,
# all at the same time. Prints what each was like; fails if one of them got no answer.
#   deploy/load_test/run.sh URL [REQUESTS_A_SECOND [TIME]]      50 a second for 60s, unless they are given
# GRAMOPHONE_API_KEY is sent where the service asks for keys. The n-th second of two runs is the same.
set -euo pipefail

url=${1:?"give the service's address, such as http://127.0.0.1:8000"}
rate=${2:-50}
duration=${3:-60s}
here=$(cd "$(dirname "$0")" && pwd)
results=$(mktemp -d)
declare -A kinds=() # by process id
trap 'rm -rf "$results"' EXIT
trap 'kill "${!kinds[@]}" 2>/dev/null || true; exit 130' INT TERM

# load KIND PERCENT OPTIONS...: begin with one kind, which is so much of all requests
load() {
  local kind=$1 hundredths=$((rate * $2)) share
  shift 2
  printf -v share '%d.%02d' $((hundredths / 100)) $((hundredths % 100))
  gramophone bench "$@" --rate "$share" --duration "$duration" >"$results/$kind" 2>&1 &
  kinds[$!]=$kind
}

# what people wait for while they type comes most often; mistakes are answered 400 and 404
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
