#!/bin/sh
# A nightly run: sweep, compare with the tagged sweep, report regressions, remove old sweeps.
#
#   exit code 0  nothing got worse, and nothing is printed
#             3  something got worse; details are in summary.md, which is printed
#             1  the run did not finish; the reason is in summary.md, which is printed
#
# Copy this file into the folder where `outputs/` should be, and change the settings. Each can also be set in the environment.
# docs/scheduling.md explains it.
set -fu
cd "$(dirname "$0")" || exit 1

PYTHON=${PYTHON:-$PWD/.venv/bin/python}                # an interpreter with sweeprof
SWEEP=${SWEEP:-+sweep=quickstart}                      # the sweep: arguments of sweeprof, separated by spaces
SWEEP_OPTIONS=${SWEEP_OPTIONS:-}                       # where it runs: cluster=slurm, hydra/launcher=joblib
THRESHOLDS=${THRESHOLDS:-}                             # of single metrics: accuracy: 0.005, added memory: 0.2
NAME=${NAME:-nightly}
OUTPUT=${OUTPUT:-outputs}
BASELINE=${BASELINE:-nightly}                          # the tag of the sweep to compare with
MOVE_TAG=${MOVE_TAG:-yes}                              # no: the tag stays where it is, as for a release
FAIL_ON=${FAIL_ON:-worse,missing,not_comparable}
KEEP=${KEEP:-30}                                       # sweeps that stay on disk, in addition to those that `sweeprof prune` always keeps
SUMMARY=${SUMMARY:-summary.md}
NOTIFY=${NOTIFY:-}  # <== notification of a bad run: a command that gets the summary as its input, and the exit code as $CODE:
                    #     mail -s "nightly: exit code $CODE" team@example.org
                    #     curl -fsS --data-binary @- https://chat.example.org/hook
LOG=$OUTPUT/$NAME.log

run() { "$PYTHON" -m sweeprof "$@" >>"$LOG" 2>&1; }

# Prints the folder of the newest sweep; folder names are times.
newest() { ls "$OUTPUT/$NAME" 2>/dev/null | grep '^[0-9]' | LC_ALL=C sort | tail -n 1; }

tag() { run compare "$OUTPUT/$NAME/$tonight" --tag "$BASELINE" --output "$OUTPUT"; }

# Ends the run with this exit code.
finish() {
    # Send sweeps of nights when the tracking server was unavailable: prune keeps sweeps that were not sent.
    run sync unsent --output "$OUTPUT" || echo "$NAME: not everything was sent, see $LOG" >&2
    run prune "$NAME" --keep "$KEEP" --output "$OUTPUT" || echo "$NAME: not pruned, see $LOG" >&2
    if [ "$1" -ne 0 ]; then
        cat "$SUMMARY"
        [ -z "$NOTIFY" ] || CODE=$1 sh -c "$NOTIFY" <"$SUMMARY" || echo "$NAME: NOTIFY failed" >&2
    fi
    exit "$1"
}

fail() {
    { printf '# %s: the nightly run did not finish\n\n%s\n\n' "$NAME" "$1" && tail -n 30 "$LOG" | sed 's/^/    /'; } >"$SUMMARY"
    finish 1
}

mkdir -p "$OUTPUT" || exit 1
# One run at a time; the lock is released when its process ends.
exec 9>"$OUTPUT/.$NAME.lock"
if command -v flock >/dev/null && ! flock -n 9; then
    echo "$NAME: the previous run is still running in $PWD" >&2
    exit 1
fi
rm -f "$SUMMARY"
echo "$NAME: $(date)" >"$LOG" || exit 1
# A tracking server, if one is set: for the sweep, and for the tag of its run.
[ -z "${MLFLOW_TRACKING_URI:-}" ] || SWEEP_OPTIONS="$SWEEP_OPTIONS tracking.uri=$MLFLOW_TRACKING_URI"
# The trend over all nights, in MLflow's experiment "$NAME history".
case " $SWEEP $SWEEP_OPTIONS " in
*" tracking=none "*) ;;
*) SWEEP_OPTIONS="tracking.history=true $SWEEP_OPTIONS" ;;
esac

set -- # so that "$@" is empty, or the thresholds, which may contain spaces
[ -z "$THRESHOLDS" ] || set -- "compare.thresholds={$THRESHOLDS}"

before=$(newest)
# shellcheck disable=SC2086  # split into arguments
run $SWEEP $SWEEP_OPTIONS "$@" name="$NAME" output="$OUTPUT"
code=$?
tonight=$(newest)
# 2: some combinations failed; the comparison lists them.
case $code in
0 | 2) [ "$tonight" != "$before" ] && [ -f "$OUTPUT/$NAME/$tonight/plan.json" ] || fail "The sweep wrote no results." ;;
*) fail "The sweep ended with exit code $code." ;;
esac

if [ "$MOVE_TAG" = yes ] && [ ! -e "$OUTPUT/.tags/$BASELINE" ]; then # the first run
    tag || fail "The first sweep could not be tagged."
    echo "First run: $tonight is tag:$BASELINE." >"$SUMMARY"
    finish 0
fi
run compare "tag:$BASELINE" "$OUTPUT/$NAME/$tonight" --output "$OUTPUT" --fail-on "$FAIL_ON" --markdown "$SUMMARY"
code=$?
case $code in
0) ;;
3) finish 3 ;;
*) fail "The comparison with tag:$BASELINE ended with exit code $code." ;;
esac
# The next run is compared with this one.
[ "$MOVE_TAG" != yes ] || tag || fail "The sweep could not be tagged."
finish 0
