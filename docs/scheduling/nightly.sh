#!/usr/bin/env bash
# One night of one objective file, for schedulers that take every exit code but 0 for a crash.
#
#   nightly.sh OBJECTIVE [further options of `tuner nightly`]
#
# A finding (3: nothing keeps the SLO, 5: the incumbent has become dearer) is told and ends with 0. What is broken keeps
# its code: 2 wrong input, 4 failed or another night is still running, 130 stopped from outside.
# TUNER_NOTIFY names a program that gets the message as its one argument; without it the message goes to stderr.
set -u

slo=${1:?usage: nightly.sh OBJECTIVE [options]}
shift

tell() {
    if [[ -n ${TUNER_NOTIFY:-} ]]; then
        "$TUNER_NOTIFY" "$1" || echo "nightly.sh: $TUNER_NOTIFY failed" >&2
    else
        echo "$1" >&2
    fi
}

code=0
tuner nightly --slo "$slo" --until 06:00 "$@" || code=$?
case $code in
    0) ;;
    3) tell "$slo: no configuration keeps the SLO any more; see tuner history --slo $slo" ;;
    5) tell "$slo: the incumbent has become dearer; see tuner history --slo $slo" ;;
    *) tell "$slo: the night ended with exit code $code" ;;
esac
case $code in
    3 | 5) exit 0 ;;
    *) exit "$code" ;;
esac
