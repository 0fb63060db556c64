#!/usr/bin/env bash
# ExecStopPost of tuner-nightly@.service: one line for whoever looks after it, nothing after a quiet night.
set -u
name=${1:?usage: told.sh OBJECTIVE_NAME}
case ${EXIT_CODE:-exited}/${EXIT_STATUS:-0} in
    exited/0) exit 0 ;;
    exited/3) message="$name: no configuration keeps the SLO any more" ;;
    exited/5) message="$name: the incumbent has become dearer" ;;
    *) message="$name: the night ended with ${EXIT_STATUS:-?} (${EXIT_CODE:-?})" ;;
esac
"${TUNER_NOTIFY:-logger}" "$message"
