"""The command line: parse, call one function, print, exit code. Each command imports what is heavy for itself."""

import gc
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tuner.errors import InputError, Interrupted, TunerError, UnitError

app = typer.Typer(
    name="tuner",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the vLLM deployment that serves your traffic within its latency promises for the least money.",
)

OK, WRONG_INPUT, NOT_FEASIBLE, FAILED, REGRESSED, INTERRUPTED = 0, 2, 3, 4, 5, 130
#: Seconds in which ending what was started is not interrupted again.
PATIENCE_S = 30.0
#: Exit code of a study by its status.
STATUS_CODES = {"winner": OK, "no_gain": OK, "no_feasible": NOT_FEASIBLE, "failed": FAILED, "interrupted": INTERRUPTED}
#: Exit code of a night by its status.
NIGHT_CODES = {"promoted": OK, "kept": OK, "no_feasible": NOT_FEASIBLE, "failed": FAILED, "regressed": REGRESSED}


class Backend(StrEnum):
    """Where deployments run."""

    auto = "auto"
    simulated = "simulated"
    local = "local"
    ray = "ray"


class Format(StrEnum):
    """What `export` writes."""

    shell = "shell"
    compose = "compose"
    kubernetes = "kubernetes"


Slo = Annotated[Path, typer.Option("--slo", help="Objective file: SLO, workload, cluster and prices.", metavar="FILE")]
Runs = Annotated[Path, typer.Option("--runs", help="Directory of all studies.", metavar="DIR")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
StudyName = Annotated[str, typer.Argument(help="Name of a study under --runs, or its path.", metavar="STUDY")]
Mlflow = Annotated[
    str | None,
    typer.Option("--mlflow", help="Tracking URI; `off` = none. [default: runs/mlflow.db]", metavar="URI"),
]
RUNS = Path("runs")


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="File to write; `-` = standard output.")] = Path("slo.yaml"),
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented objective file that runs as it is."""
    from tuner.objective_file import template

    if str(file) == "-":
        typer.echo(template(), nl=False)
        return
    if file.exists() and not force:
        raise InputError(f"{file}: it exists already; give another name, or --force to replace it")
    file.write_text(template(), encoding="utf-8")
    typer.echo(f"wrote {file}; next: tuner check {file}")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Objective file.", metavar="FILE")],
    *,
    space: Annotated[Path | None, typer.Option("--space", help="Space file, or the name of a shipped one.")] = None,
    as_json: Json = False,
) -> None:
    """Show the resolved file, the space, what is excluded and why, and what the study will take."""
    from tuner import preview
    from tuner.optimize import Request

    found = preview.preview(Request(slo=file, space=space))
    typer.echo(_dump(preview.as_json(found)) if as_json else preview.text(found))


@app.command()
def doctor(
    *,
    slo: Annotated[Path | None, typer.Option("--slo", help="Look at what this objective file needs.")] = None,
    mlflow: Mlflow = None,
    runs: Runs = RUNS,
    ray: Annotated[str | None, typer.Option("--ray", help="Address of a Ray cluster.", metavar="ADDRESS")] = None,
    as_json: Json = False,
) -> None:
    """Tell what works on this machine, what does not, and what to install."""
    from tuner import doctor as examination

    found = examination.examine(slo=slo, mlflow=mlflow, runs=runs, ray=ray)
    typer.echo(_dump(examination.as_json(found)) if as_json else examination.text(found))
    if not examination.ready(found):
        raise typer.Exit(FAILED)


@app.command()
def optimize(
    slo: Slo,
    *,
    space: Annotated[Path | None, typer.Option("--space", help="Space file, or the name of a shipped one.")] = None,
    backend: Annotated[Backend | None, typer.Option("--backend", help="Where to deploy. [default: as in FILE]")] = None,
    study: Annotated[str | None, typer.Option("--study", help="Name; the same name goes on with a study.")] = None,
    runs: Runs = RUNS,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Trials, baseline included.")] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help='Such as "6 gpu-hours", "2h" or "50 USD".', metavar="BUDGET")
    ] = None,
    parallel: Annotated[int | None, typer.Option("--parallel", min=1, help="Trials at once, at most.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of schedules, prompts and proposals.")] = 0,
    ray: Annotated[str | None, typer.Option("--ray", help="Address of a Ray cluster.", metavar="ADDRESS")] = None,
    mlflow: Mlflow = None,
    storage: Annotated[
        str | None, typer.Option("--storage", help="Optuna storage URL. [default: a file of the study]")
    ] = None,
    warm_start: Annotated[
        str | None, typer.Option("--warm-start", help="Begin with what STUDY, or `latest`, found.", metavar="STUDY")
    ] = None,
    as_json: Json = False,
) -> None:
    """Search for the cheapest deployment that keeps the SLO."""
    from tuner.optimize import Request
    from tuner.optimize import optimize as run
    from tuner.report import evidence, html, terminal

    request = Request(
        slo=slo,
        space=space,
        backend=backend.value if backend else None,
        study=study,
        runs=runs,
        trials=trials,
        budget=_budget(budget),
        parallel=parallel,
        seed=seed,
        ray=ray,
        mlflow=mlflow,
        storage=storage,
        warm_start=warm_start,
    )
    with _progress() as listen:
        path, result = run(request, listen)
    found = evidence.read(path)
    page = html.write(found)
    if as_json:
        typer.echo(_dump(result))
    else:
        terminal.render(found, _console(stderr=False))
        typer.echo(f"report: {page}")
    raise typer.Exit(STATUS_CODES[str(result["status"])])


@app.command()
def nightly(
    slo: Slo,
    *,
    until: Annotated[
        str | None, typer.Option("--until", help="When all must be over: 06:00, or a date and time.", metavar="TIME")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help='Such as "6 gpu-hours", "2h" or "50 USD".', metavar="BUDGET")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen and how long it takes.")] = False,
    space: Annotated[Path | None, typer.Option("--space", help="Space file, or the name of a shipped one.")] = None,
    backend: Annotated[Backend | None, typer.Option("--backend", help="Where to deploy. [default: as in FILE]")] = None,
    runs: Runs = RUNS,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Trials, the incumbent included.")] = None,
    ray: Annotated[str | None, typer.Option("--ray", help="Address of a Ray cluster.", metavar="ADDRESS")] = None,
    mlflow: Mlflow = None,
    as_json: Json = False,
) -> None:
    """Measure what is deployed again, look for something better, and promote it only if it is proven."""
    from dataclasses import asdict

    from tuner import nightplan
    from tuner.nightly import nightly as run
    from tuner.report import nightpage

    request = nightplan.NightRequest(
        slo=slo,
        until=until,
        budget=_budget(budget),
        space=space,
        backend=backend.value if backend else None,
        runs=runs,
        trials=trials,
        ray=ray,
        mlflow=mlflow,
    )
    if dry_run:
        plan = nightplan.plan(request)
        typer.echo(_dump(asdict(plan)) if as_json else nightplan.text(plan))
        return
    with _progress() as listen:
        found, before = run(request, listen)
    typer.echo(_dump(asdict(found)) if as_json else nightpage.text(found, before), nl=as_json)
    raise typer.Exit(NIGHT_CODES[found.status])


@app.command()
def measure(
    slo: Slo,
    *,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="URL of a running server.", metavar="URL")] = None,
    configuration: Annotated[
        Path | None, typer.Option("--configuration", help="JSON file with the knobs of one deployment.")
    ] = None,
    backend: Annotated[Backend | None, typer.Option("--backend", help="Where to deploy. [default: as in FILE]")] = None,
    out: Annotated[Path, typer.Option("--out", help="Directory of the results.")] = Path("measurement"),
    runs: Runs = RUNS,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of schedule and prompts.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a measurement in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Measure one deployment, without a search."""
    from tuner.measuring import measure as run
    from tuner.report.measurement import text

    with _progress() as listen:
        result = run(
            slo,
            url=endpoint,
            configuration=configuration,
            backend=backend.value if backend else None,
            out=out,
            runs=runs,
            seed=seed,
            listen=listen,
            replace=force,
        )
    typer.echo(_dump(result) if as_json else text(result))
    raise typer.Exit(OK if result["kept"] else NOT_FEASIBLE)


@app.command()
def report(study: StudyName, *, runs: Runs = RUNS, as_json: Json = False) -> None:
    """Show what a study found, and write its report.html."""
    from tuner.ledger import Ledger
    from tuner.report import evidence, html, terminal

    found = evidence.read(Ledger.find(runs, study).path)
    page = html.write(found)
    if as_json:
        typer.echo(_dump(dict(found.result)))
    else:
        terminal.render(found, _console(stderr=False))
        typer.echo(f"report: {page}")


@app.command()
def history(
    *,
    slo: Annotated[
        str | None,
        typer.Option("--slo", help="Objective file, or its name, where there are several.", metavar="FILE|NAME"),
    ] = None,
    runs: Runs = RUNS,
    as_html: Annotated[bool, typer.Option("--html", help="Write the page with plots, too.")] = False,
    as_json: Json = False,
) -> None:
    """Show what the incumbent was over the nights, and what changed when."""
    from tuner.report import history as nights
    from tuner.report import historypage

    found = nights.read(runs, slo)
    page = historypage.write(found) if as_html else None
    typer.echo(_dump(nights.as_json(found)) if as_json else nights.as_text(found))
    if page is not None:
        typer.echo(f"page: {page}", err=as_json)


@app.command()
def rescore(study: StudyName, slo: Slo, *, runs: Runs = RUNS, as_json: Json = False) -> None:
    """Judge a study by another objective file, without measuring again."""
    from tuner import rescoring
    from tuner.ledger import Ledger

    found = rescoring.rescore(Ledger.find(runs, study), slo)
    typer.echo(_dump(found) if as_json else rescoring.text(found))
    raise typer.Exit(OK if found["best"] is not None else NOT_FEASIBLE)


@app.command()
def export(
    study: StudyName,
    form: Annotated[Format, typer.Option("--format", help="What to write.")],
    *,
    trial: Annotated[
        str, typer.Option("--trial", help="`winner`, `baseline` or a number.", metavar="TRIAL")
    ] = "winner",
    out: Annotated[
        Path | None, typer.Option("--out", help="Directory for the file. [default: standard output]", metavar="DIR")
    ] = None,
    rdma: Annotated[
        str | None, typer.Option("--rdma", help="RDMA device resource of a Kubernetes cluster.", metavar="NAME")
    ] = None,
    runs: Runs = RUNS,
    force: Annotated[bool, typer.Option("--force", help="Replace another file in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Write a measured deployment as a shell script, a Compose file or Kubernetes manifests."""
    from tuner.export import export as run
    from tuner.ledger import Ledger

    found = run(Ledger.find(runs, study).path, form.value, trial, rdma=rdma)
    path = None if out is None else found.save(out, replace=force)
    for each in found.warnings:
        typer.echo(f"warning: {each}", err=True)
    if as_json:
        typer.echo(_dump(found.as_json(path)))
    elif path is None:
        typer.echo(found.text, nl=False)
    else:
        typer.echo(f"wrote {path}")


@app.command()
def calibrate(study: StudyName, *, runs: Runs = RUNS, as_json: Json = False) -> None:
    """Fit the simulator to a study's measured levels."""
    from tuner import calibration
    from tuner.ledger import Ledger

    found = calibration.calibrate(Ledger.find(runs, study), runs)
    typer.echo(_dump(calibration.as_json(found)) if as_json else calibration.text(found))


@app.command()
def sync(study: StudyName, *, runs: Runs = RUNS, mlflow: Mlflow = None, as_json: Json = False) -> None:
    """Bring MLflow up to date with a study's ledger."""
    from dataclasses import asdict

    from tuner import tracking, tracking_uri
    from tuner.ledger import Ledger

    uri = tracking_uri.resolve(mlflow, runs)
    if uri is None:
        raise InputError(f"--mlflow: got {mlflow!r}: name a store, or leave it out")
    found = asdict(tracking.Mirror(uri).sync(Ledger.find(runs, study)))
    if as_json:
        typer.echo(_dump(found))
    else:
        typer.echo("\n".join(f"{name:<11} {value}" for name, value in found.items() if value != []))


@app.command()
def ui(
    study: Annotated[str | None, typer.Argument(help="Name of a study; only names what to look for.")] = None,
    *,
    runs: Runs = RUNS,
    mlflow: Mlflow = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="On 127.0.0.1.")] = 5000,
) -> None:
    """Open the MLflow UI on the runs of all studies."""
    from tuner import tracking_uri
    from tuner.ledger import Ledger

    if study is not None:
        typer.echo(f"study {Ledger.find(runs, study).name}", err=True)
    uri = tracking_uri.resolve(mlflow, runs)
    if uri is None:
        raise InputError(f"--mlflow: got {mlflow!r}: name a store, or leave it out")
    command = tracking_uri.ui_command(uri, port)
    typer.echo(f"http://127.0.0.1:{port}", err=True)
    os.execvp(command[0], command)  # noqa: S606


def main() -> NoReturn:
    """Run a command; the one place where an exception becomes an exit code."""
    stop = _interrupt_once()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell leaves it for what runs in the background
            signal.signal(number, stop)
    gc.set_threshold(100_000, 50, 100)  # a level makes millions of pairs (time, tokens), which no cycle can hold
    try:
        app(standalone_mode=True)
    except InputError as error:
        _fail(str(error), WRONG_INPUT)
    except Interrupted as error:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # all is done: one signal more must not change the exit code
        _fail(str(error), INTERRUPTED)
    except TunerError as error:
        _fail(str(error), FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OK)
    sys.exit(OK)


def _interrupt_once() -> Callable[..., None]:
    """A signal handler: the first signal interrupts, and repeats do not disturb the tidying up for `PATIENCE_S`."""
    asked_s = -math.inf

    def handle(*_: object) -> None:
        nonlocal asked_s
        if time.monotonic() - asked_s >= PATIENCE_S:
            asked_s = time.monotonic()
            raise KeyboardInterrupt

    return handle


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"tuner: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _budget(text: str | None) -> Any:
    from tuner.units import parse_budget

    try:
        return parse_budget(text) if text else None
    except UnitError as error:
        raise UnitError(f"--budget: {error}") from None


def _console(*, stderr: bool) -> Any:
    from rich.console import Console

    return Console(stderr=stderr)


def _progress() -> Any:
    from tuner.progress import listener

    return listener(_console(stderr=True))


def _dump(value: object) -> str:
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
