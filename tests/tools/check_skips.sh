#!/usr/bin/env bash
# check_skips.sh LOG PRESET ALLOWED
#
# Lists every test that CTest's LastTest.log (LOG) says did not really run, each with the reason
# that it printed as "SKIP-REASON: <test>: <reason>". Exits 1 when one of them gave no reason or
# is not listed for PRESET in ALLOWED (tests/allowed_skips.txt), 2 when it cannot tell.
set -euo pipefail

if (($# != 3)); then
  echo "usage: check_skips.sh LOG PRESET ALLOWED" >&2
  exit 2
fi
log=$1 preset=$2 allowed=$3
for file in "$log" "$allowed"; do
  [[ -r $file ]] || { echo "check_skips: cannot read $file" >&2; exit 2; }
done

# One line a skipped test: name, tab, reason. The reason is taken from the block of the test, not
# by the name in it: CTest names parametrised tests by value and GoogleTest by index. A disabled
# test has a block without a command.
skipped_tests() {
  awk '
    !in_output && /^[0-9]+\/[0-9]+ Test: / {
      name = $0; sub(/^[0-9]+\/[0-9]+ Test: /, "", name); reason = ""; disabled = 0
    }
    !in_output && /^Command: ""$/ { disabled = 1 }
    /^Output:$/ { in_output = 1 }
    in_output && /^SKIP-REASON: / { reason = $0; sub(/^SKIP-REASON: [^ ]+: */, "", reason) }
    /^<end of output>$/ { in_output = 0; if (disabled) print name "\t" }
    !in_output && /^Skip (regular expression|return code)/ { print name "\t" reason }
  ' "$log"
}

is_allowed() {
  local test=$1 line preset_glob test_glob
  while IFS= read -r line || [[ -n $line ]]; do
    [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
    read -r preset_glob test_glob _ <<<"$line"
    # The right-hand sides are globs on purpose.
    # shellcheck disable=SC2053
    [[ $preset == $preset_glob && $test == $test_glob ]] && return 0
  done <"$allowed"
  return 1
}

# An entry without its reason is an error even when no test needs it.
check_allowed_file() {
  local line
  while IFS= read -r line || [[ -n $line ]]; do
    [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
    if ! [[ $line =~ ^[^\ ]+\ +[^\ #]+\ +#\ *[^\ ]+ ]]; then
      echo "check_skips: '$line' in $allowed is not 'preset-glob test-glob  # why'" >&2
      return 1
    fi
  done <"$allowed"
}

check_allowed_file || exit 2

bad=0
while IFS=$'\t' read -r test reason; do
  if [[ -z $reason ]]; then
    echo "SKIPPED ($preset) $test: NO REASON GIVEN: skip with PAGETIDE_SKIP(reason), do not disable"
    bad=1
  elif is_allowed "$test"; then
    echo "skipped ($preset) $test: $reason [allowed]"
  else
    echo "SKIPPED ($preset) $test: $reason [NOT ALLOWED: see $allowed]"
    bad=1
  fi
done < <(skipped_tests)
exit "$bad"
