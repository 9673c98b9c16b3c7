#!/usr/bin/env bash
# Write REPORT as a comment of the pull request, over that of an earlier run. A token that must not write, as in pull
# requests of forks, is a warning.
set -uo pipefail

comments=repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/comments
id=$(gh api --paginate "$comments" --jq '.[] | select(.body | startswith("<!-- quantkit -->")) | .id' | head -n 1)
if [ -n "$id" ]; then
  gh api --silent --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$id" --field "body=@$REPORT"
else
  gh api --silent "$comments" --field "body=@$REPORT"
fi || echo "::warning::the comment could not be written: the report is in the summary of the job"
