#!/usr/bin/env bash
# The steps of the workflows beside this file, one word each; tests/test_workflow.py takes the same steps.
#
#   .github/pipeline.sh machine    names the kind of processor, for the cache's key
#   .github/pipeline.sh compare    runs the pipeline on HEAD and on the commit where it left BASE_SHA, tells what differs
#   .github/pipeline.sh comment    puts what compare told below PULL_REQUEST, with a link to the report at REPORT_URL
#   .github/pipeline.sh promote    runs the pipeline and offers its model to the registry at MLFLOW_TRACKING_URI
#   .github/pipeline.sh publish    attaches the exported files and the report to the tag's release
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD told=$RUNNER_TEMP/told.md
export PATH="$root/.venv/bin:$PATH"

marker='<!-- darkroom: metrics of the pipeline -->' # by which a later push finds the comment again
shown='test.json +[|] (accuracy|accuracy_low|accuracy_high|macro_f1|nll|ece|corruption_error.mean) |'
shown+='train.json +[|] (val_accuracy|val_loss) |export.json +[|] (onnx|int8).accuracy '

# To the run's summary, and for the comment.
tell() {
    tee -a "$GITHUB_STEP_SUMMARY" >>"$told"
}

stop() {
    echo "::error::$*"
    echo "$*" | tell
    exit 1
}

short() {
    git rev-parse --short "$1"
}

# Tells that the pipeline failed on a commit, with what its failing stage printed, and no more than a comment may hold.
tell_failure() {
    local what=$1 log=$2
    {
        printf '%s\n\n~~~~\n' "$what"
        awk '/^Running stage / { kept = "" } { kept = kept $0 "\n" } END { printf "%s", kept }' "$log" | tail -n 40
        printf '~~~~\n\n'
    } | tell
}

# A processor with bf16 trains to other numbers than one without: results are taken from the cache on the same kind only.
machine() {
    echo "kind=$(lscpu | grep -E '(Model name|Flags):' | git hash-object --stdin)" >>"$GITHUB_OUTPUT"
}

# A pull request's runs are recorded beside its checkout, wherever tracking.uri leads: a fork has no password.
repro() {
    (cd "$1" && PATH="$1/.venv/bin:$PATH" MLFLOW_TRACKING_URI=sqlite:///mlflow.db dvc repro)
}

# Leaves the metrics of a commit in a commit of their own, which `dvc metrics diff` can name. They are measured here, on
# this machine, even where they are committed: most clones commit none, and those may be another machine's.
# Packages are no dependency of a stage: a base with another lock gets its own .venv, and no part in this cache.
measure() {
    local commit=$1 folder=$2
    rm -rf "$folder"
    git worktree prune && git worktree add --quiet --detach "$folder" "$commit" || return
    if cmp -s requirements.lock "$folder/requirements.lock"; then
        (cd "$folder" && dvc cache dir --local "$root/.dvc/cache") || return
    else
        make -C "$folder" setup || return
    fi
    repro "$folder" && git -C "$folder" add --force metrics &&
        git -C "$folder" -c user.name=pipeline -c user.email=pipeline@localhost \
            commit --quiet --no-verify --allow-empty --message "Metrics of $commit"
}

compare() {
    local commit base log=$RUNNER_TEMP/repro.log
    : >"$told"
    commit=$(git merge-base "$BASE_SHA" HEAD) || stop "this branch shares no commit with the one it is to be merged into"
    if ! repro "$root" 2>&1 | tee "$log"; then
        tell_failure "**The pipeline failed on $(short HEAD).**" "$log"
        exit 1
    fi
    base=$commit
    if measure "$commit" "$RUNNER_TEMP/base" 2>&1 | tee "$log"; then
        base=$(git -C "$RUNNER_TEMP/base" rev-parse HEAD)
    else
        tell_failure "The pipeline failed on $(short "$commit"), which this branch is compared with:" "$log"
    fi
    tell_difference "$base" "$commit"
}

tell_difference() {
    local base=$1 commit=$2 rows
    rows=$(dvc metrics diff "$base" --md --all |
        awk -v shown="$shown" 'NR <= 2 { print; fflush() } NR > 2 && $0 ~ shown { print | "sort" }' |
        sed -E "s/ +/ /g; s/-{3,}/---/g; 1s/[^|]*[|]/ base $(short "$commit") |/4; 1s/[^|]*[|]/ head $(short HEAD) |/5")
    {
        awk -F ' *[|] *' '
            $2 == "metrics/test.json" { was[$3] = $4; is[$3] = $5 }
            END {
                printf "Test accuracy **%s** (%s to %s)", is["accuracy"], is["accuracy_low"], is["accuracy_high"]
                print was["accuracy"] == "-" ? "." : ", before " was["accuracy"] "."
            }' <<<"$rows"
        printf '\n%s\n\n' "$rows"
    } | tell
}

comment() {
    local body=$RUNNER_TEMP/comment.md
    local run=$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/actions/runs/$GITHUB_RUN_ID
    if [[ $HEAD_REPOSITORY != "$GITHUB_REPOSITORY" ]]; then
        echo "::notice::no comment: a fork's token only reads; the table is in this run's summary"
        return
    fi
    {
        echo "$marker"
        cat "$told"
        echo "${REPORT_URL:+[Report]($REPORT_URL) · }[Run]($run)"
    } >"$body"
    # The pipeline has run, and the summary has its numbers: a comment that cannot be posted fails nothing.
    post "$body" || echo "::warning::the comment could not be posted; the table is in this run's summary"
}

# Only the workflow's own comment is edited: a person may quote the marker, another workflow may comment too.
post() {
    local issues=repos/$GITHUB_REPOSITORY/issues comments id
    comments=$(gh api --paginate "$issues/$PULL_REQUEST/comments" --jq '.[] | [.id, .user.login, .body] | @tsv') || return
    id=$(awk -F '\t' -v marker="$marker" '$2 == "github-actions[bot]" && index($3, marker) == 1 && !n++ { print $1 }' \
        <<<"$comments")
    if [[ -n $id ]]; then
        gh api --silent --method PATCH "$issues/comments/$id" --field "body=@$1"
    else
        gh api --silent --method POST "$issues/$PULL_REQUEST/comments" --field "body=@$1"
    fi
}

promote() {
    local log=$RUNNER_TEMP/release.log
    [[ -n ${MLFLOW_TRACKING_URI:-} ]] ||
        stop "promotion has no registry: set the repository's secret MLFLOW_TRACKING_URI to the address of an MLflow server"
    # The gates ask for the runs behind a model: results brought back from a cache would have none in this registry.
    if ! dvc repro --no-run-cache 2>&1 | tee "$log"; then
        tell_failure "**The pipeline failed on $GITHUB_REF_NAME.**" "$log"
        exit 1
    fi
    if ! python stages/promote.py 2>&1 | tee "$log"; then
        tell_failure "**$GITHUB_REF_NAME is not promoted.**" "$log"
        exit 1
    fi
    { printf '**%s is promoted.**\n\n~~~~\n' "$GITHUB_REF_NAME" && cat "$log" && echo '~~~~'; } | tell
}

publish() {
    local files=(export/* reports/report.html)
    if gh release view "$GITHUB_REF_NAME" --repo "$GITHUB_REPOSITORY" >/dev/null 2>&1; then # by hand, or this job before
        gh release upload "$GITHUB_REF_NAME" --repo "$GITHUB_REPOSITORY" --clobber "${files[@]}"
    else
        gh release create "$GITHUB_REF_NAME" --repo "$GITHUB_REPOSITORY" --verify-tag --generate-notes "${files[@]}"
    fi
}

case ${1:-} in
machine | compare | comment | promote | publish) "$1" ;;
*) echo "usage: .github/pipeline.sh machine | compare | comment | promote | publish" >&2 && exit 2 ;;
esac
