#!/usr/bin/env bash
# Feeds what ctest 3.25 prints to count_results.sh.
set -euo pipefail

count_results=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/count_results.sh
failures=0 cases=0

# expect NAME RESULT: the log is standard input.
expect() {
  local actual
  cases=$((cases + 1))
  actual=$("$count_results" /dev/stdin)
  if [[ $actual != "$2" ]]; then
    echo "FAILED $1: got '$actual', expected '$2'"
    failures=$((failures + 1))
  fi
}

expect "every kind of result" "2 5 3" <<'EOF'
      Start  1: S.Pass
 1/10 Test  #2: S.Fail ...........................***Failed    0.00 sec
 2/10 Test  #1: S.Pass ...........................   Passed    0.00 sec
 3/10 Test  #3: S.Skip ...........................***Skipped   0.00 sec
 4/10 Test  #5: S.Off ............................***Not Run (Disabled)   0.00 sec
 5/10 Test  #7: S.Abort ..........................Subprocess aborted***Exception:   0.00 sec
 6/10 Test  #8: I/P.Q/1 ..........................   Passed   12.50 sec
 7/10 Test  #9: I/P.Q/2 ..........................***Skipped   0.00 sec
 8/10 Test #11: missing ..........................***Not Run   0.00 sec
 9/10 Test  #6: S.Slow ...........................***Timeout   5.01 sec
10/10 Test #12: S.Segv ...........................***Exception: SegFault  0.01 sec

60% tests passed, 4 tests failed out of 10
EOF

expect "stopped by the time budget: what never started has failed" "1 3 0" <<'EOF'
1/4 Test  #1: S.Pass ...........................   Passed    0.00 sec
2/4 Test  #6: S.Slow ...........................***Timeout   1.22 sec
The stop time has been passed. Stopping all tests.
EOF

expect "a test named like a result" "0 1 0" <<'EOF'
1/1 Test  #1: Counter.Skipped and Passed .......***Failed    0.00 sec
EOF

expect "no test at all" "0 0 0" <<'EOF'
No tests were found!!!
EOF

if ((failures > 0)); then
  echo "$failures of $cases cases failed"
  exit 1
fi
echo "$cases cases passed"
