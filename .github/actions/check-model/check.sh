#!/usr/bin/env bash
# Check the agreement and the latency of MODEL, and write both reports to the Markdown file REPORT.
# Exit code 1 if a check fails; both run in any case.
set -uo pipefail

result=0

check() { # TITLE COMMAND...
  local title=$1 output status=0
  shift
  output=$("$@" -q 2>&1) || status=$?
  printf '%s\n' "$output"
  [ "$status" = 0 ] && title="$title: passed" || { title="$title: failed" result=1; }
  printf '### %s\n\n```\n$ %s\n%s\n```\n\n' "$title" "$*" "$output" >>"$REPORT"
}

# The comment of an earlier run is found by its first line.
printf '<!-- quantkit -->\n' >"$REPORT"
check agreement quantkit evaluate "$MODEL" --data "$DATA" --reference "$REFERENCE" --min-agreement "$MIN_AGREEMENT"
if [ -z "$BASELINE" ]; then
  check latency quantkit benchmark "$REFERENCE" "$MODEL" --fail-below "$FAIL_BELOW"
elif [ -e "$BASELINE" ]; then
  check latency quantkit benchmark "$MODEL" --baseline "$BASELINE" --fail-below "$FAIL_BELOW"
else
  check latency quantkit benchmark "$MODEL" --save "$BASELINE"
fi
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$REPORT" >>"$GITHUB_STEP_SUMMARY"
exit "$result"
