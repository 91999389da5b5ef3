#!/usr/bin/env bash
# Puts the results of the last ./dev bench into docs/performance.md and docs/clearing.md: what stands
# between "<!-- bench_NAME -->" and "<!-- end -->" becomes the table of bench_NAME.json in
# build/bench-results.
# A block without a result file stays as it is. The text around the blocks is checked by people.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
export LC_ALL=C.UTF-8

results=${1:-build/bench-results}
table=${2:-build/release/bin/bench_table}

block() {
  echo '```text'
  # Every name ends in the same 25 characters; the heading makes up for them.
  "$table" "$results/$1.json" |
    sed -E 's#/iterations:1/manual_time##; s#^(benchmark +) {25}( median)#\1\2#'
  echo '```'
}

new=$(mktemp)
trap 'rm -f "$new"' EXIT

update() {
  local page=$1 line skipping=0
  while IFS= read -r line; do
    [[ $line != '<!-- end -->' ]] || skipping=0
    ((skipping)) || printf '%s\n' "$line"
    if [[ $line =~ ^'<!-- '(bench_[a-z_]+)' -->'$ && -e $results/${BASH_REMATCH[1]}.json ]]; then
      block "${BASH_REMATCH[1]}"
      skipping=1
    fi
  done <"$page" >"$new"
  cp "$new" "$page"
}

update docs/performance.md
update docs/clearing.md
