#!/bin/sh
# One night: sweep, compare with the tagged sweep, say what got worse, remove old sweeps.
#
#   exit code 0  nothing got worse, and nothing is printed
#             3  something got worse: summary.md says what, and is printed
#             1  the night could not be judged: summary.md says why, and is printed
#
# Copy this file into the folder where `outputs/` is to be, and change what differs. Whoever starts it (cron, scrontab, a batch
# job, a person) may also set any of these in the environment. docs/scheduling.md explains it.
set -fu
cd "$(dirname "$0")" || exit 1

PYTHON=${PYTHON:-$PWD/.venv/bin/python}                # which has sweeprof
SWEEP=${SWEEP:-+sweep=quickstart protocol=calibrated}  # what is measured: words of the command, separated by spaces
SWEEP_OPTIONS=${SWEEP_OPTIONS:-}                       # how: cluster=slurm, hydra/launcher=joblib
NAME=${NAME:-nightly}
OUTPUT=${OUTPUT:-outputs}
BASELINE=${BASELINE:-nightly}                          # the tag of the sweep that nights are compared with
MOVE_TAG=${MOVE_TAG:-yes}                              # no: the tag stays where it is, as on a release
FAIL_ON=${FAIL_ON:-worse,missing,not_comparable}
KEEP=${KEEP:-30}                                       # sweeps that stay on disk, beside what `sweeprof prune` always keeps
SUMMARY=${SUMMARY:-summary.md}
NOTIFY=${NOTIFY:-}  # <== how you hear of a bad night: a command that gets the summary as its input, and the exit code as $CODE:
                    #     mail -s "nightly: exit code $CODE" team@example.org
                    #     curl -fsS --data-binary @- https://chat.example.org/hook
LOG=$OUTPUT/$NAME.log

run() { "$PYTHON" -m sweeprof "$@" >>"$LOG" 2>&1; }

# The folder of the newest sweep; names of folders are times.
newest() { ls "$OUTPUT/$NAME" 2>/dev/null | grep '^[0-9]' | LC_ALL=C sort | tail -n 1; }

tag() { run compare "$OUTPUT/$NAME/$tonight" --tag "$BASELINE" --output "$OUTPUT"; }

# Ends the night, good or bad.
finish() {
    # Nights that the tracking server slept through; what is not sent is not removed.
    run sync unsent --output "$OUTPUT" || echo "$NAME: not everything was sent, see $LOG" >&2
    run prune "$NAME" --keep "$KEEP" --output "$OUTPUT" || echo "$NAME: not pruned, see $LOG" >&2
    if [ "$1" -ne 0 ]; then
        cat "$SUMMARY"
        [ -z "$NOTIFY" ] || CODE=$1 sh -c "$NOTIFY" <"$SUMMARY" || echo "$NAME: NOTIFY failed" >&2
    fi
    exit "$1"
}

unjudged() {
    { printf '# %s: the night could not be judged\n\n%s\n\n' "$NAME" "$1" && tail -n 30 "$LOG" | sed 's/^/    /'; } >"$SUMMARY"
    finish 1
}

mkdir -p "$OUTPUT" || exit 1
# Whoever finds the last night still at work leaves it alone; the lock ends with its holder.
exec 9>"$OUTPUT/.$NAME.lock"
if command -v flock >/dev/null && ! flock -n 9; then
    echo "$NAME: the last night is still at work in $PWD" >&2
    exit 1
fi
rm -f "$SUMMARY"
echo "$NAME: $(date)" >"$LOG" || exit 1
# A server, where one is named: for the sweep, and for the tag of its run.
[ -z "${MLFLOW_TRACKING_URI:-}" ] || SWEEP_OPTIONS="$SWEEP_OPTIONS tracking.uri=$MLFLOW_TRACKING_URI"

before=$(newest)
# shellcheck disable=SC2086  # words of a command
run $SWEEP $SWEEP_OPTIONS name="$NAME" output="$OUTPUT"
code=$?
tonight=$(newest)
# 2: some combinations failed, which the comparison tells.
case $code in
0 | 2) [ "$tonight" != "$before" ] && [ -f "$OUTPUT/$NAME/$tonight/plan.json" ] || unjudged "The sweep left nothing." ;;
*) unjudged "The sweep ended with exit code $code." ;;
esac

if [ "$MOVE_TAG" = yes ] && [ ! -e "$OUTPUT/.tags/$BASELINE" ]; then # the first night
    tag || unjudged "The first night could not be tagged."
    echo "First night: $tonight is tag:$BASELINE." >"$SUMMARY"
    finish 0
fi
run compare "tag:$BASELINE" "$OUTPUT/$NAME/$tonight" --output "$OUTPUT" --fail-on "$FAIL_ON" --markdown "$SUMMARY"
code=$?
case $code in
0) ;;
3) finish 3 ;;
*) unjudged "The comparison with tag:$BASELINE ended with exit code $code." ;;
esac
# Tonight is what tomorrow is compared with.
[ "$MOVE_TAG" != yes ] || tag || unjudged "Tonight could not be tagged."
finish 0
