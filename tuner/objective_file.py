"""
Objective files: read, checked, written back.

`load` reads one file into `slo.Objective`; every fault is a `FileError` with line, column, key, the value received, the
rule and the remedy. `resolved` and `dump` (in canonical units: seconds, requests per second, currency per hour) are
what `load` reads back to an equal objective. The keys of every block are listed in `KEYS` and explained in
`docs/objective-file.md`.
"""

import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, cast

from tuner import cluster_file, engine_file, presets, slo_file, workload_file
from tuner.errors import FileError, InputError, Location
from tuner.objective_text import dump, fingerprint, resolved
from tuner.objective_warnings import warnings
from tuner.slo import Budget, Engine, Gate, Objective, Scalar, Search, Verification
from tuner.units import format_number, parse_budget, parse_share
from tuner.yamlfile import Node
from tuner.yamlfile import load as load_yaml
from tuner.yamlfile import loads as loads_yaml

__all__ = ["KEYS", "dump", "fingerprint", "load", "loads", "resolved", "template", "warnings"]

#: Keys of each block of an objective file, by its dotted path; "" is the top.
KEYS: Mapping[str, tuple[str, ...]] = {
    "": (
        "model",
        "model_revision",
        "slo",
        "workload",
        "cluster",
        "prices",
        "objective",
        "search",
        "backend",
        "engine",
        "baseline",
        "gate",
    ),
    **slo_file.KEYS,
    **workload_file.KEYS,
    **cluster_file.KEYS,
    "search": (
        "space",
        "trials",
        "budget",
        "min_gain",
        "sampler",
        "max_levels",
        "resolution",
        "first_guess",
        "verify",
        "divide_counts",
    ),
    "gate": ("min_gain", "confidence", "noise", "sessions"),
    "search.verify": ("finalists", "repeats", "min_requests"),
    **engine_file.KEYS,
}
_OBJECTIVES = ("cost_per_goodput", "goodput_per_gpu", "goodput")
_BACKENDS = ("auto", "simulated", "local", "ray")
_OPTION = "(option)"


def load(path: str | Path, *, overrides: Mapping[str, Scalar] | None = None) -> Objective:
    """
    Read an objective file.

    Args:
        path: A file, or the name of a shipped one where no such file exists.
        overrides: Values by dotted key that replace the file's, such as `{"search.budget": "2h"}`: what options of the
            command line say. A space among them is a path relative to the current directory, or a shipped name.

    Raises:
        InputError: The file cannot be read, or an override is wrong.
        FileError: A fault in the file.
    """
    named = str(path) in presets.list_objectives() and not Path(path).exists()
    found = presets.objective_path(str(path)) if named else Path(path)
    return _objective(load_yaml(found), found, overrides or {})


def loads(text: str, path: str | Path, *, overrides: Mapping[str, Scalar] | None = None) -> Objective:
    """As `load`, from a text; `path` is where it stands or would stand, which relative paths count from."""
    return _objective(loads_yaml(text, str(path)), Path(path), overrides or {})


def template() -> str:
    """A commented objective file that runs as it is, for `tuner init`."""
    return files("tuner").joinpath("data/template.yaml").read_text(encoding="utf-8")


def _objective(root: Node, path: Path, overrides: Mapping[str, Scalar]) -> Objective:
    absolute = Path(os.path.abspath(path))  # noqa: PTH100  symbolic links stay as the user wrote them
    try:
        return _parse(_overridden(root, overrides), absolute)
    except FileError as error:
        if error.where.file != _OPTION:
            raise
        raise InputError(f"{error.key}, given as an option: {error.message}") from error


def _parse(root: Node, path: Path) -> Objective:
    base = path.parent
    members = root.mapping(KEYS[""], required=["model", "slo", "workload", "cluster", "prices"])
    workload = workload_file.workload(members["workload"], base)
    promise = slo_file.slo(members["slo"], workload.measure.min_requests)
    slo_file.check_together(members["slo"], promise, workload)
    cluster, prices = cluster_file.cluster_and_prices(members["cluster"], members["prices"])
    objective = members["objective"].choice(_OBJECTIVES) if "objective" in members else _OBJECTIVES[0]
    backend = members["backend"].choice(_BACKENDS) if "backend" in members else _BACKENDS[0]
    closed = workload.arrivals.process == "closed_loop"
    return Objective(
        path=str(path),
        model=_model(members["model"], base),
        slo=promise,
        workload=workload,
        cluster=cluster,
        prices=prices,
        search=_search(members.get("search"), base, prices.currency, closed=closed),
        objective=cast("Literal['cost_per_goodput', 'goodput_per_gpu', 'goodput']", objective),
        backend=cast("Literal['auto', 'simulated', 'local', 'ray']", backend),
        engine=engine_file.engine(members["engine"], base) if "engine" in members else Engine(),
        baseline=engine_file.baseline(members["baseline"]) if "baseline" in members else None,
        model_revision=_revision(members["model_revision"]) if "model_revision" in members else None,
        gate=_gate(members["gate"]) if "gate" in members else Gate(),
    )


def _model(node: Node, base: Path) -> str:
    """A name such as `Qwen/Qwen3-32B` as it is; a path (it begins with `./`, `../`, `/` or `~/`) made absolute."""
    text = node.text()
    if re.match(r"(\.{1,2}|~)?/", text):
        if not text.isprintable():
            node.fail(f"got {node.shown()}: a path may not contain line breaks or control characters")
        return os.path.normpath(base / Path(text).expanduser())
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", text, re.ASCII):
        node.fail(
            f"got {node.shown()}: a model is a name such as Qwen/Qwen3-32B, "
            "or the path of a directory that begins with ./, ../ or /"
        )
    return text


def _revision(node: Node) -> str:
    text = node.text()
    if not re.fullmatch(r"\w[\w./-]*", text, re.ASCII):
        node.fail(f"got {node.shown()}: a revision is a branch, a tag or a commit")
    return text


def _gate(node: Node) -> Gate:
    members = node.mapping(KEYS["gate"])
    found = {name: member.convert(parse_share) for name, member in members.items() if name != "sessions"}
    for name, low, high, rule in (
        ("confidence", 0.5, 0.99999, "must lie between 50% and 99.999%"),
        ("noise", 0.001, 0.5, "must lie between 0.1% and 50%"),
    ):
        if name in found and not low <= found[name] <= high:
            members[name].fail(f"got {members[name].shown()}: {rule}")
    sessions = members["sessions"].integer(minimum=0, maximum=1000) if "sessions" in members else Gate.sessions
    return Gate(**found, sessions=sessions)


def _search(node: Node | None, base: Path, currency: str, *, closed: bool) -> Search:
    members = {} if node is None else node.mapping(KEYS["search"])
    defaults = Search(space="")
    numbers: dict[str, Any] = {}
    if "min_gain" in members:
        numbers["min_gain"] = members["min_gain"].convert(parse_share)
    if "max_levels" in members:
        numbers["max_levels"] = members["max_levels"].integer(minimum=1, maximum=1000)
    if "resolution" in members:
        numbers["resolution"] = members["resolution"].convert(parse_share)
        if not 0.001 <= numbers["resolution"] <= 0.5:
            members["resolution"].fail(f"got {members['resolution'].shown()}: must lie between 0.1% and 50%")
    if "divide_counts" in members:
        numbers["divide_counts"] = members["divide_counts"].number(minimum=1, maximum=1000)
    if "first_guess" in members:
        if closed:
            members["first_guess"].fail_key("a closed loop has no rate to begin with: remove this key")
        numbers["first_guess_rps"] = workload_file.positive_rate(members["first_guess"])
    if "sampler" in members:
        numbers["sampler"] = members["sampler"].choice(["tpe", "random", "gp"])
    if "verify" in members:
        numbers["verify"] = _verification(members["verify"])
    return Search(
        space=_space(members.get("space"), base),
        budget=_budget(members, currency) if "trials" in members or "budget" in members else defaults.budget,
        **numbers,
    )


def _space(node: Node | None, base: Path) -> str:
    """A path (with a `/`, or ending in .yaml) relative to the file; else the name of a shipped space."""
    if node is None:
        return str(presets.space_path("vllm"))
    text = node.text()
    if "/" in text or text.endswith((".yaml", ".yml")):
        return workload_file.file_path(node, Path.cwd() if node.where.file == _OPTION else base, "search space")
    try:
        return str(presets.space_path(text))
    except InputError as error:
        node.fail(f"{error}; a file of your own is written ./{text}.yaml")


def _verification(node: Node) -> Verification:
    members = node.mapping(KEYS["search.verify"])
    counts = {name: member.integer(minimum=1, maximum=10_000_000) for name, member in members.items()}
    return Verification(**counts)


def _budget(members: Mapping[str, Node], currency: str) -> Budget:
    """`trials` and every limit of `budget`; a file that gives one of them has no other limit."""
    found: dict[str, float] = {}
    if "trials" in members:
        found["trials"] = members["trials"].integer(minimum=1, maximum=1_000_000)
    nodes = [members["budget"]] if "budget" in members else []
    for node in nodes[0].elements() if nodes and nodes[0].is_sequence else nodes:
        amount = node.convert(parse_budget)
        if amount.kind in found:
            node.fail(f"got {node.shown()}: this kind of budget is given twice: keep one")
        if amount.currency is not None and amount.currency != currency:
            node.fail(f"got {node.shown()}: prices are in {currency}; write {format_number(amount.value)} {currency}")
        found[amount.kind] = amount.value
    if not found:
        members["budget"].fail("got an empty list: write 6 gpu-hours, 2h, 50 USD or 40 trials, or remove the key")
    trials = found.pop("trials", None)
    return Budget(trials=None if trials is None else int(trials), **found)


def _overridden(root: Node, overrides: Mapping[str, Scalar]) -> Node:
    for key, value in overrides.items():
        root = _replaced(root, key.split("."), "", value)
    return root


def _replaced(node: Node, names: list[str], path: str, value: Scalar) -> Node:
    """A copy of the tree with one value put in; blocks on the way are made where they are missing."""
    where = Location(_OPTION, 1, 1)
    name, rest = names[0], names[1:]
    key = f"{path}.{name}" if path else name
    members = dict(node.items())
    if rest:
        inner = members.get(name) or Node(where, key, {}, quoted=False, key_where=where)
        members[name] = _replaced(inner, rest, key, value)
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        members[name] = Node(where, key, text, quoted=isinstance(value, str), key_where=where)
    return Node(node.where, node.key, members, node.quoted, node.key_where)
