#!/usr/bin/env bash
# count_results.sh LOG
#
# Prints "PASSED FAILED SKIPPED" for what ctest printed (LOG). Everything that neither passed nor
# was skipped has failed: time limits, missing programs, and what was never started because the
# time budget was used up.
set -euo pipefail

awk '
  /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
    split($1, position, "/"); total = position[2]
    if (/\*\*\*Skipped +[0-9.]+ sec|\*\*\*Not Run \(Disabled\)/) skipped++
    else if (/ Passed +[0-9.]+ sec/) passed++
  }
  END { print passed + 0, total - passed - skipped, skipped + 0 }' "$1"
