#!/usr/bin/env bash
# Feeds made-up CTest logs to check_skips.sh and compares exit code and output.
set -euo pipefail

check_skips=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/check_skips.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=$scratch/LastTest.log allowed=$scratch/allowed.txt
failures=0 cases=0

# block NAME COMMAND OUTPUT VERDICT: one test as CTest 3.25 logs it.
block() {
  printf '%s\n' "1/9 Testing: $1" "1/9 Test: $1" "Command: \"$2\"" 'Directory: /x' \
    "\"$1\" start time: Jan 01 00:00 UTC" 'Output:' \
    '----------------------------------------------------------' "$3" '<end of output>' \
    'Test time =   0.00 sec' '----------------------------------------------------------' "$4" \
    "\"$1\" end time: Jan 01 00:00 UTC" '' >>"$log"
}
passed() { block "$1" /bin/t "${2:-fine}" 'Test Passed.'; }
skipped() {
  block "$1" /bin/t "${2:+SKIP-REASON: $1: $2}" \
    $'Test Pass Reason:\nSkip regular expression found in output. Regex=[\\[  SKIPPED \\]]'
}

begin() { : >"$log"; printf '# header\n\n' >"$allowed"; }

# expect CASE STATUS [TEXT...]: runs the check for preset asan; every TEXT must be in its output.
expect() {
  local name=$1 status=$2 output actual=0 text
  shift 2
  cases=$((cases + 1))
  output=$("$check_skips" "$log" asan "$allowed" 2>&1) || actual=$?
  if ((actual != status)); then
    echo "FAILED $name: exit status $actual, expected $status; output: $output"
    failures=$((failures + 1))
  fi
  for text in "$@"; do
    if [[ $output != *"$text"* ]]; then
      echo "FAILED $name: '$text' is not in: $output"
      failures=$((failures + 1))
    fi
  done
  if (($# == 0)) && [[ -n $output ]]; then
    echo "FAILED $name: expected no output, got: $output"
    failures=$((failures + 1))
  fi
}

begin; passed A.B; passed C.D
expect "nothing skipped" 0

begin; passed A.B; skipped S.T 'needs kernel 6.7'
expect "skip that is not allowed" 1 'SKIPPED (asan) S.T: needs kernel 6.7 [NOT ALLOWED'

begin; skipped S.T 'needs kernel 6.7'; echo 'asan S.T  # CI has kernel 6.1' >>"$allowed"
expect "skip that is allowed" 0 'skipped (asan) S.T: needs kernel 6.7 [allowed]'

begin; skipped S.T/4K why; echo '*san S.*  # globs' >>"$allowed"
expect "globs" 0 'S.T/4K: why [allowed]'

begin; skipped S.T why; echo 'tsan S.T  # another preset' >>"$allowed"
expect "allowed for another preset only" 1 'NOT ALLOWED'

begin; skipped S.T why; printf 'asan S.T  # no newline at the end' >>"$allowed"
expect "last line without newline" 0 '[allowed]'

begin; skipped S.T ''; echo 'asan S.T  # allowed, still wants a reason' >>"$allowed"
expect "skip without reason" 1 'S.T: NO REASON GIVEN'

begin; skipped First.One 'one'; skipped Second.Two ''
expect "a reason is not carried to the next test" 1 'First.One: one' 'Second.Two: NO REASON GIVEN'

begin; skipped One.A 'a'; skipped Two.B 'b'; echo 'asan One.A  # why' >>"$allowed"
expect "one bad of two" 1 'One.A: a [allowed]' 'Two.B: b [NOT ALLOWED'

begin; block D.Off '' '' 'Test Passed.'
expect "disabled test" 1 'D.Off: NO REASON GIVEN'

begin; block I/P.Q/4096 /bin/t 'SKIP-REASON: I/P.Q/0: by index' \
  $'Test Pass Reason:\nSkip regular expression found in output. Regex=[x]'
expect "parametrised test, named by index in its reason" 1 'I/P.Q/4096: by index'

begin; passed A.B $'Command: ""\nSkip regular expression found\n1/9 Test: Fake'
expect "output of a test that looks like CTest's own" 0

begin; passed A.B; echo 'asan S.T' >>"$allowed"
expect "entry without why" 2 "is not 'preset-glob test-glob  # why'"

begin; rm "$log"
expect "missing log" 2 'cannot read'

if ((failures > 0)); then
  echo "$failures expectation(s) of $cases cases failed"
  exit 1
fi
echo "$cases cases passed"
