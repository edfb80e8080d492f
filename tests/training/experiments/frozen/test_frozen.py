"""Frozen experiments: cached states equal the full path, heads train, runs are lines of a file."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from s2sent.model.network.encoder import build_encoder, build_plain_encoder, get_selector
from s2sent.model.network.pooled import stopped_at
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import OVERLAPPING
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.experiments.frozen.heads import (
    ARMS,
    LowRankHead,
    SelectorHead,
    StaticHead,
    num_parameters,
    rank_with,
)
from s2sent.training.experiments.frozen.run import OBJECTIVES, Plan, require_possible, run_plan
from s2sent.training.experiments.frozen.setting import Setting, read_setting
from s2sent.training.experiments.frozen.states import BlockStates, cached_states
from s2sent.training.experiments.frozen.tables import frozen_tables
from s2sent.training.experiments.frozen.train import CHOSEN_ON, Schedule, batch_loss, train_head
from s2sent.training.files.jsonl import read_lines
from s2sent.training.objectives.contrastive import ContrastiveLoss
from s2sent.training.recipe.recipe import CorpusPart
from tests.support.tiny_data import SENTENCES, write_table

WIDTH = 32
TEXTS = [*SENTENCES[:6], "a dog", SENTENCES[7] + " and " + SENTENCES[8]]
QUICK = Schedule(steps=6, learning_rate=0.0, eval_every=3, batch_size=4)


def plain(backbone: Path) -> SentenceTransformer:
    return build_plain_encoder(backbone, max_seq_length=24)


def states_of(backbone: Path, config: SelectorConfig, cache: Path) -> BlockStates:
    return cached_states(plain(backbone), TEXTS, config, cache)


def lively(selector: nn.Module) -> None:
    """Weights large enough that the gate depends on its input."""
    torch.manual_seed(5)
    for parameter in selector.parameters():
        nn.init.normal_(parameter, std=0.5)


OPTIONS: list[dict[str, Any]] = [{}, {"weight_norm": "softmax_logits", "num_frequencies": 8}]


@pytest.mark.parametrize("depth", [3, 4])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_selector_gives_the_same_from_cached_states(
    backbone: Path, tmp_path: Path, options: dict[str, Any], depth: int
) -> None:
    """Equal to the selector on the tokens and its pooling, at full depth and at an exit."""
    config = SelectorConfig(width=WIDTH, **options)
    encoder = build_encoder(backbone, config, max_seq_length=24, normalize=False)
    lively(get_selector(encoder))
    head = SelectorHead(config)
    head.selector.load_state_dict(get_selector(encoder).state_dict())
    with stopped_at(encoder, depth):
        expected = encoder.encode(TEXTS, show_progress_bar=False)
    states = states_of(backbone, config, tmp_path)
    rows = np.arange(len(TEXTS))
    found = head(*states.batch(rows, range(depth - 2, depth + 1))).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_loss_is_that_of_the_full_path(backbone: Path, tmp_path: Path) -> None:
    """Same weights, same pairs: within 1e-5, and so is the gradient of every parameter."""
    config = SelectorConfig(width=WIDTH, weight_norm="softmax_logits")
    encoder = build_encoder(backbone, config, max_seq_length=24, normalize=False)
    selector = get_selector(encoder)
    lively(selector)
    head = SelectorHead(config)
    head.selector.load_state_dict(selector.state_dict())
    inputs: list[list[Any]] = [[*TEXTS[:4]], [*TEXTS[4:]]]
    columns = [encoder.preprocess(texts) for texts in inputs]
    full = ContrastiveLoss(encoder, 0.05, projection=False, gather=False)
    expected = full(columns, torch.empty(0))
    pairs = np.array([[0, 4], [1, 5], [2, 6], [3, 7]])
    setting = replace(some_setting(states_of(backbone, config, tmp_path)), pairs=pairs)
    found = batch_loss(head, setting, np.arange(4), range(2, 5), "contrastive")
    assert float(found.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    expected.backward()
    found.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    for mine, theirs in zip(head.selector.parameters(), selector.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-3)


def some_setting(states: BlockStates) -> Setting:
    nothing: Any = None
    return Setting("tiny", 4, WIDTH, states, nothing, nothing, nothing, nothing, nothing, "0")


def test_states_are_computed_once_for_a_backbone_texts_length_and_frequencies(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SelectorConfig(width=WIDTH)
    first = states_of(backbone, config, tmp_path)

    def made() -> int:
        return len(list(tmp_path.glob("*.npz")))

    assert made() == 1
    with monkeypatch.context() as patched:
        patched.setattr(
            "s2sent.training.experiments.frozen.states.block_states",
            lambda *_: pytest.fail("again"),
        )
        again = states_of(backbone, config, tmp_path)
    np.testing.assert_array_equal(first.pooled, again.pooled)
    states_of(backbone, SelectorConfig(width=WIDTH, num_frequencies=8), tmp_path)
    shorter = build_plain_encoder(backbone, max_seq_length=8)
    cached_states(shorter, TEXTS, config, tmp_path)
    cached_states(plain(backbone), TEXTS[:-1], config, tmp_path)
    assert made() == 4


def test_more_states_than_a_cache_may_hold_are_refused(backbone: Path, tmp_path: Path) -> None:
    config = SelectorConfig(width=WIDTH)
    with pytest.raises(ConfigError, match="take 8,192 bytes, more than 100: use fewer"):
        cached_states(plain(backbone), TEXTS, config, tmp_path, max_bytes=100)


def test_the_controls_start_where_they_are_said_to() -> None:
    """Static weights at the mean, the low-rank head at the last block, of the gate's size."""
    pooled = torch.randn(5, 3, WIDTH)
    unused, lengths = torch.zeros(5, 3, WIDTH), torch.ones(5, dtype=torch.long)
    for per_feature in (False, True):
        static = StaticHead(3, WIDTH, per_feature=per_feature)
        torch.testing.assert_close(static(pooled, unused, lengths), pooled.mean(1))
        assert num_parameters(static) == (3 * WIDTH if per_feature else 3)
    low_rank = LowRankHead(WIDTH, 4)
    torch.testing.assert_close(low_rank(pooled, unused, lengths), pooled[:, -1])
    made = {name: num_parameters(arm.make(384)) for name, arm in ARMS.items()}
    assert made["last"] == made["mean"] == 0
    assert made["low-rank"] == pytest.approx(made["s2sent"], rel=0.01)
    assert num_parameters(LowRankHead(384, rank_with(made["s2sent"], 384))) == made["low-rank"]


@pytest.fixture(scope="module")
def setting(backbone: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "sts").mkdir()
    (folder / "corpus").symlink_to(data / "corpus")
    (folder / "sts" / "stsb-dev.tsv").symlink_to(data / "sts" / "stsb-dev.tsv")
    header = ("subset", "score", "sentence1", "sentence2")
    for task in OVERLAPPING:
        write_table(folder / "sts" / TASKS[task], [header, ("x", "1", *SENTENCES[:2])])
    rows = [(a, b) for a, b in itertools.pairwise(SENTENCES[:20])]
    packages = write_table(folder / "packages.tsv", [("query", "document"), *rows])
    parts = [CorpusPart(source="captions"), CorpusPart(source="wikisplit")]
    return read_setting(str(backbone), folder, packages, folder / "cache", corpus=parts)


def test_a_setting_holds_dev_without_its_overlap_and_the_packages(setting: Setting) -> None:
    assert len(setting.dev.all.gold) - len(setting.dev.without_overlap.gold) == 1
    assert len(setting.queries) == len(setting.documents) == 19
    assert setting.pairs.max() < len(setting.states.lengths)


def outcome_of(arm: str, setting: Setting, seed: int = 1, **options: Any) -> Any:
    torch.manual_seed(seed)
    schedule = replace(QUICK, **{"learning_rate": 0.05, **options})
    return train_head(ARMS[arm].make(WIDTH), setting, range(2, 5), "contrastive", schedule, seed)


def test_heads_train_and_say_how_far_their_weights_changed(setting: Setting) -> None:
    trained = outcome_of("static-blocks", setting, steps=30)
    assert trained["step"] > 0
    assert trained["weight_change"] > 0.05
    assert sum(trained["block_weights"]) == pytest.approx(1)
    assert trained["spread"] == 0  # the same for every text
    still = outcome_of("static-blocks", setting, learning_rate=1e-9)
    assert still["weight_change"] < 1e-6
    assert outcome_of("s2sent", setting, steps=30)["weight_change"] > 0
    assert outcome_of("low-rank", setting)["weight_change"] is None


def test_the_start_is_a_candidate_for_the_best_step(setting: Setting) -> None:
    """A rate of 0 never scores higher than the start."""
    found = outcome_of("s2sent", setting, learning_rate=0.0)
    assert found["step"] == 0
    assert found["chosen"] == found["start"]


def test_what_is_said_of_weights_is_of_the_step_that_is_scored(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that only gets worse keeps its initial weights, however far its last ones are."""
    scores = iter(range(100, 0, -1))
    monkeypatch.setattr(
        "s2sent.training.experiments.frozen.train.development_scores",
        lambda *_: {CHOSEN_ON: float(next(scores))},
    )
    found = outcome_of("static-blocks", setting, steps=30)
    assert (found["step"], found["weight_change"]) == (0, 0)
    assert found["block_weights"] == pytest.approx([1 / 3] * 3)


def test_equal_seeds_give_equal_runs(setting: Setting) -> None:
    assert outcome_of("s2sent", setting) == outcome_of("s2sent", setting)
    assert outcome_of("s2sent", setting) != outcome_of("s2sent", setting, seed=2)


def test_runs_are_lines_and_are_not_run_again(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "frozen.jsonl"
    rates = (1e-3, 1e-2)
    arms, objectives = ("mean", "static-blocks", "s2sent"), OBJECTIVES[:2]
    plan = Plan((3, 4), (1, 2), QUICK, rates, arms, objectives)
    run_plan(setting, plan, file, tmp_path)
    lines = read_lines(file)
    settings = 3  # exit 3 with both objectives, exit 4 with one
    assert len(lines) == settings * (1 + 2 * len(rates) + 2 * 2)
    assert {line["schedule"]["learning_rate"] for line in lines} == {0.0, *rates}
    monkeypatch.setattr(
        "s2sent.training.experiments.frozen.run.train_head", lambda *_: pytest.fail("again")
    )
    run_plan(setting, plan, file, tmp_path)
    assert read_lines(file) == lines


def test_runs_of_other_lengths_have_tables_of_their_own(setting: Setting, tmp_path: Path) -> None:
    """What learns nothing stands in all that learn at its exit."""
    file = tmp_path / "frozen.jsonl"
    plan = Plan((3,), (1, 2), QUICK, arms=("mean", "s2sent"), objectives=("contrastive",))
    run_plan(setting, plan, file, tmp_path)
    alone = frozen_tables(file)
    other = replace(QUICK, steps=3, eval_every=3)
    run_plan(setting, replace(plan, seeds=(1, 2, 3), schedule=other), file, tmp_path)
    first, second = frozen_tables(file).split("### ")[1:]
    assert first.startswith("3 steps of 4 pairs, scored every 3 steps, of ")
    assert first.count("nothing learned") == 1
    assert second.startswith("6 steps of 4 pairs, scored every 3 steps, of ")
    assert second.partition("\n\n")[2].strip() == alone


@pytest.mark.parametrize(
    ("exits", "seeds", "message"),
    [((2,), (1,), "Depth 2 is outside 3 to 4"), ((3,), (0, 1), "Seed 0 chooses learning rates")],
)
def test_a_plan_that_cannot_be_run_is_refused(
    exits: Sequence[int], seeds: Sequence[int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        require_possible(Plan(exits, seeds, QUICK, arms=("last", "mean")), 4, None)
