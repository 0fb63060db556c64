"""Answers of scripted deployments against those of a plain one, through a trial's own way."""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support import synthetic_study
from support.deployments import shim_objective, shims

from tuner import canary, measuring, serial, trial
from tuner.configuration import Configuration
from tuner.deployment.local import LocalLauncher
from tuner.errors import InputError
from tuner.events import Note
from tuner.guard import FILE, Guard
from tuner.ledger import Ledger
from tuner.slo import Load, Objective

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two engines need two cores")

PLAIN = Configuration({})
SPLIT = Configuration({"mode": "disaggregated"})
STORED = Configuration({"kv_store": "lmcache", "kv_store_ram_gib": 1})
BLENDED = Configuration({**STORED.knobs, "lmcache_blending": True, "enable_prefix_caching": False})


@dataclass
class World:
    """A study's directory, and trials that are run one after the other with engines that behave as told."""

    directory: Path
    ledger: Ledger
    notes: list[str] = field(default_factory=list)
    charged: list[tuple[str, float]] = field(default_factory=list)
    started: int = 0

    def objective(self, **env: str) -> Objective:
        made = shim_objective({"SHIM_RECORD": str(self.directory), **env}, max_gpus=2)
        return replace(made, workload=replace(made.workload, load=Load("rate", rate_rps=20.0)))

    def guard(self, goal: Objective, launcher: LocalLauncher) -> Guard:
        return Guard(
            self.ledger,
            launcher,
            PLAIN,
            make=lambda: canary.questions(goal, None, seed=1, longest=None),
            charge=lambda plain, seconds: self.charged.append((plain.key, seconds)),
            listen=lambda event: self.notes.append(event.text) if isinstance(event, Note) else None,
        )

    def run(self, configuration: Configuration, **env: str):
        """Outcome of one trial in a session of its own, as `study` runs it."""
        goal = self.objective(**env)
        launcher = LocalLauncher(goal, registry=self.directory / "registry")
        guard = self.guard(goal, launcher)
        guard.prepare(configuration)
        self.started += 1
        return trial.run(
            trial.Task(self.started, 1, configuration, seed=1, first=None, beat=None),
            launcher.deployment(configuration, self.directory / f"logs-{self.started}"),
            goal,
            keep=lambda level, data: level,
            listen=lambda event: None,
            expired=lambda: False,
            check=guard.check,
        )


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path, synthetic_study.create(tmp_path / "runs"))
    yield made
    assert not shims(tmp_path)


def test_equal_answers_are_scored_and_counted(world):
    """The baseline's answers are kept; a split deployment that gives the same is measured, and its facts say so."""
    baseline = world.run(PLAIN)
    assert baseline.state == "feasible"
    assert "answers" not in baseline.facts
    assert len(world.ledger.read_json(FILE)["{}"]["forward"]) == canary.COUNT
    split = world.run(SPLIT)
    assert (split.state, split.cause) == ("feasible", "")
    expected = {"compared": 8, "equal": 8, "close": 0, "different": 0, "kv_transfer_share": 1.0}
    assert expected.items() <= split.facts["answers"].items()
    assert world.charged == []


def test_questions_stay_out_of_the_levels_counters(world):
    """What the levels count is what the levels sent."""
    world.run(PLAIN)
    level = world.run(SPLIT).best
    asked = sum(value for name, value in level.counters.items() if name == "decode.prompt_tokens_total")
    assert 0 < asked <= 20 * level.requests  # of 20 tokens each; a question has 640


@pytest.mark.parametrize(
    ("says", "said"),
    [("foreign", "which is not among the 5 likeliest"), ("unlikely", "which is 200 times less likely")],
)
def test_other_answers_end_the_trial_before_its_first_level(world, says, said):
    """PD-07: everything is fast and transferred, and decode says something else: output_mismatch, and why."""
    world.run(PLAIN)
    split = world.run(SPLIT, SHIM_SAYS_DECODE=says)
    assert (split.state, split.reason, split.levels) == ("config_failed", "output_mismatch", ())
    assert "8 of 8 canary prompts are answered otherwise" in split.cause
    assert "prompt 1 at token 3 with token_id:" in split.cause
    assert said in split.cause
    assert split.counters["kv_transfer_share"] == 1
    assert world.ledger.read_json(FILE)["{}"] is not None


def test_a_late_word_that_was_nearly_as_likely_is_rounding(world):
    """From the tenth token on everything differs, because two words were nearly equal there: scored."""
    world.run(PLAIN)
    split = world.run(SPLIT, SHIM_SAYS_DECODE="rounding")
    assert split.state == "feasible"
    assert split.facts["answers"]["close"] == 8


def test_one_other_answer_is_told_and_scored(world):
    """One prompt in eight is noted as a warning."""
    world.run(PLAIN)
    split = world.run(SPLIT, SHIM_SAYS_DECODE="foreign_1")
    assert split.state == "feasible"
    assert split.facts["answers"]["different"] == 1
    assert "one canary prompt is answered otherwise than by a plain engine" in world.notes


def test_what_comes_from_the_store_is_compared_too(world):
    """The first answers are computed and right; asked again, after the engines forgot, they come spoilt."""
    world.run(PLAIN)
    assert world.run(STORED).facts["answers"]["compared"] == 16
    asked = [line for path in world.directory.glob("*.requests") for line in path.read_text().splitlines()]
    assert "POST /reset_prefix_cache" in asked
    spoilt = world.run(STORED, SHIM_SAYS="spoilt")
    assert spoilt.reason == "output_mismatch"
    assert "8 of 8 canary prompts" in spoilt.cause
    assert "prompt 1, asked again, at token 3" in spoilt.cause


def test_without_a_plain_trial_a_plain_engine_is_started_once(world):
    """A baseline that is split itself: a plain engine's answers are asked for, charged and kept for later sessions."""
    assert world.run(SPLIT).state == "feasible"
    assert [key for key, _ in world.charged] == ["{}"]
    assert world.run(SPLIT, SHIM_SAYS_DECODE="foreign").reason == "output_mismatch"
    assert len(world.charged) == 1


def test_a_quantised_cache_is_compared_with_a_quantised_cache(world):
    """Flags that change answers on purpose are the plain engine's too."""
    world.run(PLAIN)
    split = Configuration({**SPLIT.knobs, "kv_cache_dtype": "fp8"})
    assert world.run(split).state == "feasible"
    assert [key for key, _ in world.charged] == ['{"kv_cache_dtype":"fp8"}']


@pytest.mark.parametrize(
    "env", [{"SHIM_SAYS": "refused"}, {"SHIM_MODE": "exit", "SHIM_MODE_PREFILL": "ok", "SHIM_MODE_DECODE": "ok"}]
)
def test_without_a_plain_engines_answers_nothing_is_claimed(world, env):
    """Scored, and the facts say why nothing was compared."""
    split = world.run(SPLIT, **env)
    assert split.state == "feasible"
    assert "a plain engine" in split.facts["answers"]["not_compared"]
    assert any("answers are not compared" in note for note in world.notes)


def test_a_failing_question_is_no_answer(world):
    """What a plain engine answers and this deployment refuses is a mismatch with the response in the cause."""
    world.run(PLAIN)
    split = world.run(SPLIT, SHIM_SAYS_DECODE="refused")
    assert split.reason == "output_mismatch"
    assert "HTTP 400" in split.cause


def test_blended_answers_are_asked_in_another_order_and_must_all_be_right(world):
    """Parts are stored in one order and asked for in the other; a single other answer is one too many."""
    world.run(PLAIN)
    blended = world.run(BLENDED, SHIM_HITS="0.5")
    assert blended.state == "feasible"
    assert blended.facts["answers"]["equal"] == 16
    assert blended.facts["answers"]["store_hit_tokens"] > 0
    odd = world.run(BLENDED, SHIM_HITS="0.5", SHIM_SAYS="foreign_1")
    assert (odd.reason, odd.cause[:23]) == ("output_mismatch", "1 of 8 canary prompts a")


def test_blending_that_blends_nothing_is_not_scored(world):
    """LMCache#5101: everything starts and is answered, and no part is found again: store_not_effective."""
    world.run(PLAIN)
    blended = world.run(BLENDED)
    assert blended.reason == "store_not_effective"
    assert blended.counters["store_hit_tokens"] == 0


def test_blending_is_never_scored_unjudged(world):
    """Lossy reuse without a plain engine's answers is out, whatever the reason of their absence."""
    blended = world.run(BLENDED, SHIM_SAYS="refused")
    assert blended.reason == "output_mismatch"
    assert "cannot be judged" in blended.cause


def test_a_refuted_proof_keeps_its_counters(world):
    """PD-01: right answers, computed by decode itself: outcome.json has what the engines counted over that level."""
    world.run(PLAIN)
    split = world.run(SPLIT, SHIM_MODE_DECODE="recompute")
    assert (split.reason, split.best) == ("pd_not_effective", None)
    assert split.counters["kv_transfer_share"] == 0
    assert split.counters["decode.prompt_tokens_by_source_total.local_compute"] > 0
    assert serial.outcome_from_json(json.loads(json.dumps(serial.outcome_to_json(split)))).counters == split.counters


def test_measure_refuses_what_it_cannot_judge(tmp_path):
    """One configuration alone has no plain engine beside it: lossy reuse belongs in a study."""
    path = tmp_path / "knobs.json"
    path.write_text(json.dumps(dict(BLENDED.knobs)))
    with pytest.raises(InputError, match=r"knobs.json: lmcache_blending: .*use `optimize`"):
        measuring._read(path)
