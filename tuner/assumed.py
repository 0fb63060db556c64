"""What a simulated number rests on, in words: step times, their version, and how far off each metric may be."""

from collections.abc import Iterable, Mapping

#: Of every simulated study, before anything else.
NO_ENGINE = "simulated: no engine ran; every time and every cost comes from a model of the engine"


def caveats(facts: Iterable[Mapping[str, object]]) -> list[str]:
    """
    Sentences for people.

    Args:
        facts: Of simulated deployments, as `deployment.simulated` states them.

    Returns:
        That no engine ran; the step times of each kind; what is expected of each metric, each thing said once.
    """
    made: dict[str, None] = {}
    errors: dict[str, dict[str, None]] = {}
    for each in facts:
        if "table_version" in each:
            made[f"{each.get('step_times')} ({each['table_version']})"] = None
        expected = each.get("expected_error")
        if isinstance(expected, Mapping):
            for metric, said in expected.items():
                errors.setdefault(str(metric), {})[str(said)] = None
    found = [NO_ENGINE]
    if made:
        found.append(f"step times: {'; '.join(made)}")
    if errors:
        told = [f"{metric}: {' / '.join(said)}" for metric, said in errors.items()]
        found.append(f"expected error: {'. '.join(told)}")
    return found


def tags(facts: Mapping[str, object]) -> dict[str, str]:
    """The same of one deployment, by name; empty for a live one."""
    if "table_version" not in facts:
        return {}
    expected = facts.get("expected_error")
    told = [f"{metric}: {said}" for metric, said in expected.items()] if isinstance(expected, Mapping) else []
    return {
        "step_times": str(facts.get("step_times")),
        "table_version": str(facts["table_version"]),
        "expected_error": ". ".join(told),
    }
