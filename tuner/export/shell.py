"""Plan → a bash script that starts the measured commands in order, waits until each is ready, and stops all of them."""

import json
import math
import shlex
from collections.abc import Callable, Iterator

from tuner.deployment.spec import ProcessSpec, core_list
from tuner.export.places import Ref, Text, expand
from tuner.export.plan import Plan, settings

_HEAD = """\
#
#   ./deploy.sh                   starts every process here, waits until it serves, and stops all of it when it is ended
#   ./deploy.sh NAME [NAME ...]   starts these processes alone; the others are expected at their addresses
#
# Processes: {names}
# The variables below can be set from outside. LOGS=DIR writes one log a process instead of the terminal.
# Needs bash 4.4, curl and setsid{needs}.
# shellcheck disable=SC2329
set -euo pipefail
"""
#: The part that is the same in every script.
_RUNTIME = r"""
work=$(mktemp -d "${TMPDIR:-/tmp}/tuner-XXXXXX")
chosen=("$@")
started=()
declare -A pids=()

say() { printf 'deploy: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

stop() {
    local code=$? name pid place wait_s
    trap - EXIT
    trap '' INT TERM HUP
    for ((place = ${#started[@]} - 1; place >= 0; place--)); do
        name=${started[place]} pid=${pids[${started[place]}]}
        kill -TERM "$pid" 2>/dev/null || true
        for ((wait_s = 0; wait_s < 150; wait_s++)); do
            kill -0 -- "-$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL -- "-$pid" 2>/dev/null && say "$name had to be killed"
        pkill -KILL -s "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf -- "$work"
    exit "$code"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mine() {
    local name
    for name in "${chosen[@]}"; do [[ $name == "$1" ]] && return 0; done
    return 1
}

alive() {
    local name
    for name in "${started[@]}"; do kill -0 "${pids[$name]}" 2>/dev/null || die "$name has ended"; done
}

# place NAME HOST PORT...: a directory of its own, and ports that nobody listens on
place() {
    local name=$1 host=$2 port
    shift 2
    for port in "$@"; do tcp "$host" "$port" && die "$name: port $port of $host is in use already"; done
    mkdir -p -- "$work/$name"
}

# start NAME COMMAND...: in a session of its own, so that all of it can be ended
start() {
    local name=$1
    shift
    if [[ -n ${LOGS:-} ]]; then
        mkdir -p -- "$LOGS"
        (cd -- "$work/$name" && exec setsid "$@") >"$LOGS/$name.log" 2>&1 &
    else
        (cd -- "$work/$name" && exec setsid "$@") &
    fi
    pids[$name]=$!
    started+=("$name")
    say "$name started, pid ${pids[$name]}"
}

# ready NAME SECONDS CHECK...: nothing that is left to be started here waits for a process of another machine
ready() {
    local name=$1 limit=$2 end=$((SECONDS + $2))
    shift 2
    mine "$name" || ((${#started[@]} < ${#chosen[@]})) || return 0
    until "$@"; do
        alive
        ((SECONDS < end)) || die "$name was not ready within $limit s"
        sleep 1
    done
    alive
    say "$name is ready"
}

tcp() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }
# In the background, so that a signal is heard at once.
ask() {
    curl --noproxy '*' -fs -o /dev/null "$@" &
    wait "$!"
}
http() { ask --max-time 10 "$1"; }
token() { ask --max-time 120 -H 'Content-Type: application/json' --data "$2" "$1/v1/completions"; }
"""
_TAIL = """
# Nothing but an end ends it.
wait -n || true
alive
die "a process has ended"
"""


def script(plan: Plan) -> str:
    """The whole script; it says every measured token again, with addresses as variables."""
    names = " ".join(spec.name for spec in plan.specs)
    pinned = any(spec.cores for spec in plan.specs)
    lines = ["#!/usr/bin/env bash", *(f"# {line}" for line in plan.origin.lines())]
    lines += [_HEAD.format(names=names, needs=", taskset" if pinned else "")]
    lines += _variables(plan)
    lines += [_RUNTIME, *_choice(plan)]
    for order in sorted({spec.order for spec in plan.specs}):
        together = [spec for spec in plan.specs if spec.order == order]
        for spec in together:
            lines += ["", *_start(spec, plan)]
        lines += ["", *(_ready(spec, plan) for spec in together)]
    if any(spec.endpoint for spec in plan.specs):
        where = quoted(expand(plan.endpoint, "http://${host}:${port:http}/v1"))
        lines += [f"if mine {plan.endpoint.name}; then say serving at {where}; fi"]
    return "\n".join(lines) + "\n" + _TAIL.lstrip("\n")


def variable(ref: Ref) -> str:
    """Name of the variable that holds it: `PREFILL_0_SIDE_CHANNEL_PORT`, `ENGINE_0_HOST`."""
    process = ref.process.upper().replace("-", "_")
    if ref.what != "port":
        return f"{process}_{ref.what.upper()}"
    return f"{process}_PORT" if ref.name == "http" else f"{process}_{ref.name.upper()}_PORT"


def _variables(plan: Plan) -> Iterator[str]:
    for spec in plan.specs:
        at = plan.addresses[spec.name]
        host = variable(Ref("host", spec.name))
        yield f"{host}=${{{host}:-{at.host}}}" if at.host else f': "${{{host}:?set it to the address of {spec.name}}}"'
        for need in spec.ports:
            name = variable(Ref("port", spec.name, need.name))
            block = f"  # and the next {need.count - 1}" if need.count > 1 else ""
            yield f"{name}=${{{name}:-{at.ports[need.name]}}}{block}"
        if spec.cores:
            name, cores = variable(Ref("cores", spec.name)), at.cores
            slots = [core_list(cores[first : first + spec.cores]) for first in range(0, len(cores), spec.cores)]
            yield f"{name}=${{{name}:-{'|'.join(slots)}}}"
        elif at.gpus:
            name = variable(Ref("gpus", spec.name))
            yield f"{name}=${{{name}:-{','.join(at.gpus)}}}"
    for name in sorted({name for spec in plan.specs for name in settings(spec)[1].values()}):
        yield f': "${{{name}:?set it: it was a secret when this was measured}}"'


def _choice(plan: Plan) -> Iterator[str]:
    names = " ".join(spec.name for spec in plan.specs)
    known = "|".join(spec.name for spec in plan.specs)
    yield 'for name in "${chosen[@]}"; do'
    yield f'    case $name in {known}) ;; *) die "there is no process $name; there are {names}" ;; esac'
    yield "done"
    if plan.one_machine:
        yield f"((${{#chosen[@]}})) || chosen=({names})"
    else:
        yield f'((${{#chosen[@]}})) || die "these ran on several machines; say which to start on this one: {names}"'


def _start(spec: ProcessSpec, plan: Plan) -> Iterator[str]:
    env, secrets = settings(spec)
    host = quoted((Ref("host", spec.name),))
    ports = " ".join(
        quoted((Ref("port", spec.name, need.name),))
        if count == 0
        else f'"$(({variable(Ref("port", spec.name, need.name))} + {count}))"'
        for need in spec.ports
        for count in range(need.count)
    )
    yield f"if mine {spec.name}; then"
    if spec.units and not spec.cores and not plan.addresses[spec.name].gpus:
        gpus = "id of its GPU" if spec.units == 1 else f"ids of its {spec.units} GPUs"
        yield f'    : "${{{variable(Ref("gpus", spec.name))}:?set it to the {gpus}}}"'
    yield f"    place {spec.name} {host} {ports}"
    for name, template in spec.files.items():
        path = quoted((Ref("file", spec.name, name),))
        yield f"    printf '%s' {quoted(expand(spec, template))} >{path}"
    yield f"    start {spec.name} \\"
    if spec.cores:
        yield f'        taskset --cpu-list "${{{variable(Ref("cores", spec.name))}//|/,}}" \\'
    yield "        env \\"
    if not spec.units or spec.cores:
        yield "        CUDA_VISIBLE_DEVICES= \\"
    for name, template in sorted(env.items()):
        yield f"        {name}={quoted(expand(spec, template))} \\"
    for name, source in sorted(secrets.items()):
        yield f'        {name}="${{{source}}}" \\'
    words = [quoted(expand(spec, token)) for token in spec.argv]
    yield " \\\n".join(f"        {word}" for word in words)
    yield "fi"


def _ready(spec: ProcessSpec, plan: Plan) -> str:
    limit = spec.ready.limit_s
    limit_s = math.ceil(plan.objective.engine.start_timeout_s if limit is None else limit)
    host, port = Ref("host", spec.name), Ref("port", spec.name, spec.ready.port)
    if spec.ready.kind == "tcp":
        check = f"tcp {quoted((host,))} {quoted((port,))}"
    elif spec.ready.kind == "http":
        check = f"http {quoted(('http://', host, ':', port, spec.ready.path))}"
    else:
        asked = json.dumps({"model": plan.objective.model, "prompt": "Hello", "max_tokens": 1}, ensure_ascii=False)
        check = f"token {quoted(('http://', host, ':', port))} {shlex.quote(asked)}"
    return f"ready {spec.name} {limit_s} {check}"


def quoted(pieces: Text) -> str:
    """One word for bash: literal text stays what it is, references become variables."""
    if all(isinstance(piece, str) for piece in pieces):
        return shlex.quote("".join(str(piece) for piece in pieces))
    return '"' + "".join(_escaped(piece) if isinstance(piece, str) else _reference(piece) for piece in pieces) + '"'


def _escaped(text: str) -> str:
    """Within double quotes."""
    return "".join(f"\\{letter}" if letter in '\\"$`' else letter for letter in text)


def _reference(ref: Ref) -> str:
    paths: dict[str, Callable[[], str]] = {
        "directory": lambda: f"$work/{ref.process}",
        "file": lambda: f"$work/{ref.process}/{ref.name}",
    }
    return paths[ref.what]() if ref.what in paths else f"${{{variable(ref)}}}"
