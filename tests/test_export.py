"""Exports say what was measured, in three languages, and refuse what they cannot say."""

import json
import subprocess
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML
from support import golden
from support.exports import planned
from support.named import AGGREGATED, SPLIT_OR_STORED
from support.objectives import objective

from tuner.errors import InputError
from tuner.export.formats import FORMATS, render

SCHEMAS = Path(__file__).parent / "data" / "schemas"
NAMED = {
    **{name: (goal, knobs) for name, (goal, knobs) in AGGREGATED.items()},
    **{name: (objective(**made), knobs) for name, (made, knobs) in SPLIT_OR_STORED.items()},
}
RDMA = "rdma/hca_shared_devices_a"


def exported(name, form):
    """The text, or the refusal."""
    goal, knobs = NAMED[name]
    try:
        return render(planned(goal, knobs), form, rdma=RDMA if form == "kubernetes" else None).text
    except InputError as error:
        return f"refused: {error}\n"


def documents(text):
    """Every YAML document in it."""
    return list(YAML(typ="safe").load_all(text))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", NAMED)
def test_named_deployments_match_their_golden_files(name, form):
    """Each deployment in each format, or its refusal, is exactly as reviewed."""
    golden.check(f"exports/{name}/{FORMATS[form].file}", exported(name, form))


@pytest.mark.parametrize("name", NAMED)
def test_scripts_are_bash(name):
    """Bash reads every script without an error."""
    done = subprocess.run(["bash", "-n"], input=exported(name, "shell"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", [name for name in NAMED if not exported(name, "compose").startswith("refused")])
def test_compose_files_keep_the_schema(name):
    """The Compose specification's own schema accepts every file."""
    schema = json.loads((SCHEMAS / "compose-spec.json").read_text(encoding="utf-8"))
    (project,) = documents(exported(name, "compose"))
    jsonschema.Draft7Validator(schema).validate(project)


@pytest.mark.parametrize("name", [name for name in NAMED if not exported(name, "kubernetes").startswith("refused")])
def test_manifests_keep_the_schema(name):
    """Kubernetes' own definitions accept every object, strictly: no unknown field."""
    definitions = json.loads((SCHEMAS / "kubernetes-1.37.json").read_text(encoding="utf-8"))
    kinds = {
        "Deployment": "io.k8s.api.apps.v1.Deployment",
        "Service": "io.k8s.api.core.v1.Service",
        "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    }
    for document in documents(exported(name, "kubernetes")):
        schema = {**definitions, "$ref": f"#/$defs/{kinds[document['kind']]}"}
        jsonschema.Draft202012Validator(schema).validate(document)
