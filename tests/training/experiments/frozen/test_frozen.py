"""Frozen experiments: states equal the full path, heads train, runs are lines of a file."""

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from s2sent.model.network.encoder import (
    build_encoder,
    build_plain_encoder,
    build_prompt_encoder,
    get_selector,
)
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import TEMPLATES
from s2sent.training.evaluation.development import OVERLAPPING, WITHOUT_OVERLAP
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.experiments.engine import TESTS
from s2sent.training.experiments.frozen import run
from s2sent.training.experiments.frozen.heads import (
    ARMS,
    DECODER_ARMS,
    LowRankHead,
    SelectorHead,
    StaticHead,
    num_parameters,
    rank_with,
)
from s2sent.training.experiments.frozen.run import CLEAN_UP, FrozenBackbone, run_heads
from s2sent.training.experiments.frozen.states import BlockStates, states_of
from s2sent.training.experiments.frozen.train import Schedule, batch_loss, batches_of, train_head
from s2sent.training.files.jsonl import read_lines
from s2sent.training.objectives.contrastive import ContrastiveLoss
from tests.support.tiny import tiny_decoder
from tests.support.tiny_data import SENTENCES, write_table

WIDTH = 32
TEXTS = [*SENTENCES[:6], "a dog", SENTENCES[7] + " and " + SENTENCES[8]]
PAIRS = torch.tensor([[0, 4], [1, 5], [2, 6], [3, 7]])
OPTIONS: list[dict[str, Any]] = [{}, {"weight_norm": "softmax_logits", "num_frequencies": 8}]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_decoder(tmp_path_factory.mktemp("frozen-decoder") / "tiny")


def prompted(decoder: Path, config: SelectorConfig | None) -> SentenceTransformer:
    templates = [TEMPLATES["sfp"]]
    return build_prompt_encoder(decoder, config, templates, pooling="rep1", clean_up=CLEAN_UP)


def lively(encoder: SentenceTransformer, config: SelectorConfig) -> SelectorHead:
    """Give the selector weights so large that the gate depends on its input; a head with them."""
    torch.manual_seed(5)
    for parameter in get_selector(encoder).parameters():
        nn.init.normal_(parameter, std=0.5)
    head = SelectorHead(config)
    head.selector.load_state_dict(get_selector(encoder).state_dict())
    return head


def found(head: SelectorHead, states: BlockStates, blocks: int = 3) -> Any:
    return head(*states.batch(slice(None), blocks)).detach().numpy()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_selector_gives_the_same_from_states_as_from_tokens(
    backbone: Path, options: dict[str, Any]
) -> None:
    config = SelectorConfig(width=WIDTH, **options)
    encoder = build_encoder(backbone, config, max_seq_length=24, normalize=False)
    head = lively(encoder, config)
    states = states_of(build_plain_encoder(backbone, max_seq_length=24), TEXTS, config, 4)
    expected = encoder.encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(found(head, states), expected, atol=1e-5)


@pytest.mark.parametrize("norm", ["none", "rms", "length"])
def test_a_selector_gives_the_same_from_the_states_of_one_token(decoder: Path, norm: Any) -> None:
    """Whatever scales the states: they are kept as they are."""
    config = SelectorConfig.preset("decoder", width=WIDTH, input_norm=norm)
    encoder = prompted(decoder, config)
    head = lively(encoder, config)
    states = states_of(prompted(decoder, None), TEXTS, config, 4)
    assert states.coefficients is states.pooled
    np.testing.assert_allclose(found(head, states), encoder.encode(TEXTS), atol=1e-5)


def test_the_loss_is_that_of_the_full_path(backbone: Path) -> None:
    """Same weights, same pairs: within 1e-5, and so is the gradient of every parameter."""
    config = SelectorConfig(width=WIDTH, weight_norm="softmax_logits")
    encoder = build_encoder(backbone, config, max_seq_length=24, normalize=False)
    head = lively(encoder, config)
    inputs: list[list[Any]] = [[*TEXTS[:4]], [*TEXTS[4:]]]
    full = ContrastiveLoss(encoder, 0.05, projection=False, gather=False)
    expected = full([encoder.preprocess(texts) for texts in inputs], torch.empty(0))
    states = states_of(build_plain_encoder(backbone, max_seq_length=24), TEXTS, config, 3)
    loss = batch_loss(head, states, PAIRS, 3)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    expected.backward()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    selector = get_selector(encoder)
    for mine, theirs in zip(head.selector.parameters(), selector.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-3)


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


def test_every_decoder_arm_is_compared_with_simpler_ones_of_its_size() -> None:
    for name, arm in DECODER_ARMS.items():
        assert all(control in ARMS for control in arm.controls), name
    static = ("static-blocks-6-rms", "static-features-6-rms")
    assert ARMS["s2sent-6-rms"].controls == ("last", "mean-6-rms", "low-rank-rms", *static)


def trained(rate: float, scores: list[float]) -> tuple[int, float, float]:
    """The kept step and its score, and the one weight of a head whose gradient is always 1."""
    head = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(head.weight)
    told = iter(scores)
    schedule = Schedule(steps=4, learning_rate=rate, eval_every=2)
    kept = train_head(
        head, lambda _: head.weight.sum(), lambda: next(told), itertools.repeat(PAIRS), schedule
    )
    return *kept, head.weight.item()


def test_the_kept_step_is_the_best_one_and_the_start_is_among_them() -> None:
    assert trained(0.1, [50.0, 60.0, 55.0])[:2] == (2, 60.0)
    assert trained(0.1, [50.0, 55.0, 60.0])[:2] == (4, 60.0)
    assert trained(0.1, [50.0, 40.0, 45.0]) == (0, 50.0, 0.0)
    *_, at_2 = trained(0.1, [50.0, 60.0, 55.0])
    *_, at_4 = trained(0.1, [50.0, 55.0, 60.0])
    assert at_4 < at_2 < 0


def test_batches_have_every_pair_once_an_epoch_and_equal_seeds_equal_batches() -> None:
    pairs = torch.arange(20).view(10, 2)
    first = torch.cat([*itertools.islice(batches_of(pairs, 5, 1), 2)])
    torch.testing.assert_close(first.sort(0).values, pairs)
    again = torch.cat([*itertools.islice(batches_of(pairs, 5, 1), 2)])
    other = torch.cat([*itertools.islice(batches_of(pairs, 5, 2), 2)])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert [len(each) for each in itertools.islice(batches_of(pairs, 4, 1), 4)] == [4] * 4
    assert len(next(batches_of(pairs, 64, 1))) == 10


@pytest.fixture(scope="module")
def folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with seven tests of a few pairs, one of which also stands in dev."""
    folder = tmp_path_factory.mktemp("frozen-data")
    (folder / "sts").mkdir()
    (folder / "corpus").mkdir()
    for file in (data / "corpus").iterdir():
        (folder / "corpus" / file.name).symlink_to(file)
    paraphrases = folder / "corpus" / "pan-paraphrase.tsv.gz"
    paraphrases.unlink(missing_ok=True)
    rows = [("1", a, b) for a, b in zip(SENTENCES[:20], SENTENCES[20:40], strict=True)]
    write_table(paraphrases, [("label", "sentence1", "sentence2"), *rows])
    header = ("subset", "score", "sentence1", "sentence2")
    for number, task in enumerate(TASKS.values()):
        test = [("x", str(place % 6), *pair) for place, pair in enumerate(pairs_from(number, 24))]
        write_table(folder / "sts" / task, [header, *test])
    dev = [("x", str(place % 6), *pair) for place, pair in enumerate(pairs_from(40, 20))]
    write_table(folder / "sts" / "stsb-dev.tsv", [header, ("x", "1", *SENTENCES[:2]), *dev])
    return folder


def pairs_from(start: int, count: int) -> list[tuple[str, str]]:
    return [*itertools.pairwise(SENTENCES[start : start + count])]


def test_rates_are_chosen_and_then_every_seed_is_run_and_tested_once(
    backbone: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, file = FrozenBackbone(str(backbone), folder, 20, 0), tmp_path / "sfp.jsonl"
    assert len(frozen.dev.gold) == 19
    assert set(OVERLAPPING) < set(frozen.tests)
    run_heads(frozen, file, 4, (1, 2))
    lines = read_lines(file)
    learning = ["static-blocks", "static-features", "low-rank", "s2sent-eq4", "s2sent"]
    tuning, rest = lines[: 2 * len(learning)], lines[2 * len(learning) :]
    assert [(line["arm"], line["seed"]) for line in tuning] == [
        (arm, 0) for arm in learning for _ in run.RATES
    ]
    assert not any(TESTS in line for line in tuning)
    assert [(line["arm"], line["seed"]) for line in rest] == [("last", 0), ("mean", 0)] + [
        (arm, seed) for seed in (1, 2) for arm in learning
    ]
    assert all({*TASKS, "average"} == {*line[TESTS]} for line in rest)
    for line in rest[2:]:
        scores = {
            of["schedule"]["learning_rate"]: of["chosen"][WITHOUT_OVERLAP]
            for of in tuning
            if of["arm"] == line["arm"]
        }
        assert scores[line["schedule"]["learning_rate"]] == max(scores.values())
    assert lines[0]["schedule"] == asdict(Schedule(4, run.RATES[0], 1, 64))
    monkeypatch.setattr(run, "states_of", lambda *_, **__: pytest.fail("again"))
    run_heads(FrozenBackbone(str(backbone), folder, 20, 0), file, 4, (1, 2))
    assert read_lines(file) == lines


def test_a_decoder_of_few_blocks_is_read_inside_its_template(
    decoder: Path, folder: Path, tmp_path: Path
) -> None:
    """Of four: arms that fuse six or twelve are left out."""
    frozen, file = FrozenBackbone(str(decoder), folder, 20, 20), tmp_path / "sfp.jsonl"
    run_heads(frozen, file, 2, (1,))
    lines = read_lines(file)
    assert {line["reading"]["num_blocks"] for line in lines} == {4}
    arms = {line["arm"] for line in lines}
    assert arms >= {"last", "mean-4-rms", "s2sent-3-rms"}
    assert "mean-3-length" not in arms  # which published runs have
    assert max(ARMS[line["arm"]].num_blocks for line in lines) == 4
    assert {line[TESTS]["pairs_per_task"] for line in lines if TESTS in line} == {20}
