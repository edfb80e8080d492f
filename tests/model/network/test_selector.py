"""The selector against oracles written out by hand, and every option against doing nothing."""

import json
import math
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from s2sent.model.network.selector import MODULE_FILE, S2SentSelector
from s2sent.model.network.selector_config import PRESETS, SelectorConfig
from s2sent.model.network.selector_squeeze import LOW_FREQUENCIES, frequency_pairs
from s2sent.model.network.selector_states import normed, pool_tokens

WIDTH = 22
LENGTHS = [9, 4, 1]
MASK = (torch.arange(9) < torch.tensor(LENGTHS)[:, None]).long()


def blocks_of(num_blocks: int, seed: int = 0, width: int = WIDTH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), 9, width)
    return [torch.randn(shape, generator=generator).double() for _ in range(num_blocks)]


def selector_of(config: SelectorConfig) -> S2SentSelector:
    """A selector whose gate is far from its initial, nearly constant state."""
    torch.manual_seed(0)
    selector = S2SentSelector(config).double().eval()
    for parameter in selector.parameters():
        nn.init.normal_(parameter, std=0.7)
    return selector


def squeeze(config: SelectorConfig, blocks: list[Tensor], mask: Tensor = MASK) -> Tensor:
    frequency_selection = selector_of(config).frequency_selection
    assert frequency_selection is not None
    mask = mask.double()
    basis = frequency_selection.token_basis(mask)
    f: Tensor = frequency_selection([basis @ block for block in blocks], mask)
    return f


def parameter_count(config: SelectorConfig) -> int:
    return sum(parameter.numel() for parameter in S2SentSelector(config).parameters())


# --- frequency selection -------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 6])
@pytest.mark.parametrize("m", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("policy", "seed"), [("filtered", 0), ("raw", 0), ("filtered", 3)])
def test_each_part_of_the_features_holds_its_frequency(
    num_blocks: int, m: int, policy: Any, seed: int
) -> None:
    """Against Eq. 10 as a triple loop over blocks, tokens and features."""
    config = SelectorConfig(
        width=WIDTH,
        num_blocks=num_blocks,
        num_frequencies=m,
        frequency_policy=policy,
        frequency_seed=seed,
        weight_norm="none",
    )
    blocks = blocks_of(num_blocks)
    f = squeeze(config, blocks)
    pairs = frequency_pairs(config)
    bounds = [0]
    for part in range(m):
        bounds.append(bounds[-1] + WIDTH // m + (part < WIDTH % m))
    for sentence, length in enumerate(LENGTHS):
        for (a, b), start, stop in zip(pairs, bounds[:-1], bounds[1:], strict=True):
            for d in range(start, stop):
                total = 0.0
                for n, block in enumerate(blocks):
                    for j in range(length):
                        total += (
                            block[sentence, j, d].item()
                            * math.cos(math.pi * a * (n + 0.5) / num_blocks)
                            * math.cos(math.pi * b * (j + 0.5) / length)
                        )
                if policy == "filtered" and b >= length:
                    total = 0.0
                assert f[sentence, d].item() == pytest.approx(
                    total / (num_blocks * length), abs=1e-12
                )


@pytest.mark.parametrize(
    ("norm", "factor"),
    [
        ("mean_ac", lambda k, points: math.sqrt(2) if k else 1),
        ("ortho", lambda k, points: math.sqrt(2 * points if k else points)),
        ("sum", lambda k, points: points),
    ],
)
def test_norms_scale_the_mean_per_axis(norm: Any, factor: Any) -> None:
    config = SelectorConfig(width=8, reduction=2, num_frequencies=4)
    blocks = blocks_of(3, width=8)
    plain, scaled = squeeze(config, blocks), squeeze(replace(config, dct_norm=norm), blocks)
    for part, (a, b) in enumerate(frequency_pairs(config)):
        columns = slice(2 * part, 2 * part + 2)
        for sentence, length in enumerate(LENGTHS):
            expected = plain[sentence, columns] * factor(a, 3) * factor(b, length)
            assert torch.allclose(scaled[sentence, columns], expected, atol=1e-12)


def test_a_block_frequency_of_n_is_zero_and_one_above_is_an_alias() -> None:
    """With N = 3 the raw list's (3, 0) vanishes and (4, 0) is (2, 0) with the other sign."""
    config = SelectorConfig(width=16, num_frequencies=16, frequency_policy="raw")
    same_features = [block[..., :1].expand(-1, -1, 16) for block in blocks_of(3)]
    f = dict(zip(LOW_FREQUENCIES, squeeze(config, same_features).T, strict=True))
    assert f[3, 0].abs().max() <= 1e-12
    assert f[2, 0].abs().max() > 1e-3
    assert torch.allclose(f[4, 0], -f[2, 0], atol=1e-12)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 6])
def test_filtered_frequencies_are_distinct_and_alive(num_blocks: int) -> None:
    config = SelectorConfig(
        width=WIDTH, num_blocks=num_blocks, num_frequencies=16, weight_norm="none"
    )
    pairs = frequency_pairs(config)
    assert len(set(pairs)) == 16
    assert max(a for a, _ in pairs) < num_blocks
    live = [pair for pair in LOW_FREQUENCIES if pair[0] < num_blocks]
    assert pairs[: len(live)] == live
    if num_blocks == 1:
        assert pairs == [(0, b) for b in range(16)]


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 6])
@pytest.mark.parametrize("m", [1, 4, 16])
def test_drawn_frequencies_are_distinct_alive_and_the_same_for_a_seed(
    num_blocks: int, m: int
) -> None:
    config = SelectorConfig(
        width=WIDTH, num_blocks=num_blocks, num_frequencies=m, weight_norm="none"
    )
    draws = [frequency_pairs(replace(config, frequency_seed=seed)) for seed in range(1, 9)]
    assert draws == [frequency_pairs(replace(config, frequency_seed=seed)) for seed in range(1, 9)]
    for pairs in draws:
        assert len(set(pairs)) == m
        assert all(a < num_blocks and b < 16 for a, b in pairs)
    if (num_blocks, m) == (1, 16):  # there are no others
        assert all(pairs == frequency_pairs(config) for pairs in draws)
    else:
        assert len({tuple(pairs) for pairs in draws}) > 1


def test_a_seed_draws_what_a_checkpoint_was_trained_with() -> None:
    """Only the seed is stored: another draw would load as another encoder."""
    config = SelectorConfig(width=WIDTH, frequency_seed=1)
    assert frequency_pairs(config) == [(0, 3), (1, 4), (2, 5), (2, 10)]


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 12, 13])
def test_the_grid_pools_like_torch(length: int) -> None:
    config = SelectorConfig(width=4, reduction=2, dct_grid="6x6", frequency_policy="raw")
    blocks = [block.reshape(1, -1, 4)[:, :length] for block in blocks_of(3, width=4)]
    f = squeeze(config, blocks, torch.ones(1, length))
    grid = nn.functional.adaptive_avg_pool2d(torch.stack(blocks, 1).permute(0, 3, 1, 2), (6, 6))
    points = (torch.arange(6).double() + 0.5) * math.pi / 6
    for d, (a, b) in enumerate(frequency_pairs(config)):
        expected = torch.cos(a * points) @ grid[0, d] @ torch.cos(b * points) / 36
        assert f[0, d].item() == pytest.approx(expected.item(), abs=1e-12)


# --- spatial selection ---------------------------------------------------------------------------


def test_a_softmax_over_one_branch_is_an_error() -> None:
    with pytest.raises(ValueError, match="single branch is always 1"):
        SelectorConfig(width=12, num_blocks=1)
    with pytest.raises(ValueError, match="single branch is always 1"):
        SelectorConfig(width=12, spatial_selection="1d", weight_norm="softmax_logits")


@pytest.mark.parametrize("num_blocks", [2, 3, 12])
def test_zero_weights_average_the_last_blocks(num_blocks: int) -> None:
    selector = selector_of(SelectorConfig(width=WIDTH, num_blocks=num_blocks))
    for parameter in selector.parameters():
        nn.init.zeros_(parameter)
    states = blocks_of(num_blocks + 2)
    fused = selector.fuse(selector.select_blocks(states), MASK)
    assert torch.allclose(fused, torch.stack(states[-num_blocks:]).mean(0), atol=1e-12)


def test_an_untrained_selector_is_nearly_the_average() -> None:
    torch.manual_seed(0)
    selector = S2SentSelector(SelectorConfig(width=WIDTH)).double()
    assert (selector.block_weights(blocks_of(3), MASK) - 1 / 3).abs().max() < 1e-3


def test_one_dimensional_selection_gates_the_average() -> None:
    """The same gate on one averaged block must give the same sentence."""
    wide = selector_of(SelectorConfig(width=WIDTH, spatial_selection="1d", weight_norm="none"))
    single = selector_of(SelectorConfig(width=WIDTH, num_blocks=1, weight_norm="none"))
    single.load_state_dict(wide.state_dict())
    blocks = blocks_of(3)
    expected = single.fuse([torch.stack(blocks).mean(0)], MASK)
    assert torch.allclose(wide.fuse(blocks, MASK), expected, atol=1e-12)


def test_avg_is_the_average_without_parameters() -> None:
    config = SelectorConfig(width=WIDTH, spatial_selection="avg")
    assert parameter_count(config) == 0
    blocks = blocks_of(3)
    fused = S2SentSelector(config).fuse(blocks, MASK)
    assert torch.allclose(fused, torch.stack(blocks).mean(0), atol=1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_gradients_reach_every_fused_block_and_no_other(name: str) -> None:
    selector = selector_of(SelectorConfig.preset(name, width=WIDTH)).train()
    states = [state.requires_grad_() for state in blocks_of(5)]
    features = {
        "all_layer_embeddings": tuple(states),
        "attention_mask": MASK,
        "read_positions": MASK.sum(1).long() - 1,
    }
    fused = selector({**features, "token_embeddings": states[-1]})["token_embeddings"]
    (fused * torch.randn(fused.shape)).sum().backward()
    reached = [state.grad is not None and bool(state.grad.abs().sum() > 0) for state in states]
    last = name != "official"
    assert reached == [False, not last, True, True, last]


@pytest.mark.parametrize(
    ("num_blocks", "plain", "with_biases", "with_batch_norm"),
    [(1, 98_304, 99_136, 100_672), (3, 196_608, 198_976, 203_584), (6, 344_064, 348_736, 357_952)],
)
def test_parameter_counts(
    num_blocks: int, plain: int, with_biases: int, with_batch_norm: int
) -> None:
    config = SelectorConfig(width=768, num_blocks=num_blocks, weight_norm="none")
    assert parameter_count(replace(config, bias=False)) == plain
    assert parameter_count(config) == with_biases
    assert parameter_count(replace(config, norm="batch")) == with_batch_norm
    if num_blocks == 3:
        bert_base = 109_482_240
        assert round(100 * with_biases / bert_base, 3) == 0.182


@pytest.mark.parametrize(
    ("reduction", "count"), [(4, 592_320), (8, 297_312), (16, 149_808), (24, 100_640), (48, 51_472)]
)
def test_reduction_sets_the_hidden_width(reduction: int, count: int) -> None:
    assert parameter_count(SelectorConfig(width=768, reduction=reduction)) == count


# --- presets -------------------------------------------------------------------------------------


class ReleasedSelector(nn.Module):
    """What the authors' released module computes, derived from its description.

    The N blocks before the last are pooled to 6 x 6 cells with their padding, transformed by an
    orthonormal DCT, squeezed by tanh, expanded through BatchNorm and a sigmoid; every weight is
    exp(e) over the one sum of exp(e) across blocks, batch and features.
    """

    def __init__(self, width: int, hidden: int, num_blocks: int) -> None:
        super().__init__()
        self.num_blocks = num_blocks
        self.reduce = nn.Linear(width, hidden)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, width), nn.BatchNorm1d(width, eps=1e-6))
            for _ in range(num_blocks)
        )

    def forward(self, states: list[Tensor]) -> Tensor:
        fused = torch.stack(states[-self.num_blocks - 1 : -1])  # [N, B, L, D]
        cells = nn.functional.adaptive_avg_pool2d(fused.permute(1, 3, 0, 2), (6, 6))
        k = torch.arange(6).double()
        dct = torch.cos(math.pi / 6 * k[:, None] * (k + 0.5)) * math.sqrt(2 / 6)
        dct[0] = math.sqrt(1 / 6)
        spectrum = torch.einsum("ai,bdij,cj->bdac", dct, cells, dct)
        quarters = spectrum.chunk(4, dim=1)
        pairs = [(0, 0), (0, 1), (1, 0), (1, 1)]
        f = torch.cat([q[:, :, a, b] for q, (a, b) in zip(quarters, pairs, strict=True)], 1)
        z = self.reduce(f).tanh()
        gain = torch.stack([branch(z).sigmoid().exp() for branch in self.branches])
        return torch.einsum("nbld,nbd->bld", fused, gain / gain.sum())


@pytest.mark.parametrize("training", [True, False])
def test_the_official_preset_computes_what_the_released_module_does(training: bool) -> None:
    torch.manual_seed(0)
    width, num_blocks = 24, 3
    released = ReleasedSelector(width, width // 12, num_blocks).double()
    for parameter in released.parameters():
        nn.init.normal_(parameter, std=0.7)
    selector = S2SentSelector(SelectorConfig.preset("official", width=width)).double()
    gate = selector.spatial_selection
    assert gate is not None
    branches = [branch.state_dict() for branch in released.branches]
    gate.reduce.load_state_dict(released.reduce.state_dict())
    gate.expand.weight.data = torch.cat([branch["0.weight"] for branch in branches])
    gate.expand.bias.data = torch.cat([branch["0.bias"] for branch in branches])
    for norm, branch in zip(gate.norms, released.branches, strict=True):
        norm.load_state_dict(branch.get_submodule("1").state_dict())
    released.train(training)
    selector.train(training)
    states = blocks_of(5, width=width)
    fused = selector.fuse(selector.select_blocks(states), MASK)
    assert torch.allclose(fused, released(states), rtol=0, atol=1e-12)


def test_the_paper_preset_is_its_equations() -> None:
    """Eq. 10 as a plain sum, Eq. 3 without biases, Eq. 4's softmax over blocks of a sigmoid."""
    selector = selector_of(SelectorConfig.preset("paper", width=WIDTH, num_frequencies=1))
    weights = dict(selector.named_parameters())
    blocks = [block[:1] for block in blocks_of(3)]
    f = torch.stack(blocks).sum((0, 2))
    z = torch.relu(f @ weights["spatial_selection.reduce.weight"].T)
    e = (z @ weights["spatial_selection.expand.weight"].T).sigmoid().view(3, 1, WIDTH)
    expected = (e.exp() / e.exp().sum(0))[:, :, None] * torch.stack(blocks)
    assert torch.allclose(selector.fuse(blocks, MASK[:1]), expected.sum(0), atol=1e-12)


def test_the_paper_preset_of_one_block_is_the_identity_and_says_so() -> None:
    """Eq. 4's softmax over one block is always 1."""
    with pytest.warns(UserWarning, match="softmax over one block is always 1"):
        config = SelectorConfig.preset("paper", width=WIDTH, num_blocks=1)
    selector = selector_of(config)
    (block,) = blocks_of(1)
    assert torch.equal(selector.fuse([block], MASK), block)
    with pytest.warns(UserWarning, match="changes nothing"):
        assert SelectorConfig(**asdict(config)) == config  # as a checkpoint holds it


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ValueError, match="unknown preset 'best': choose one of default, paper"):
        SelectorConfig.preset("best", width=8)


# --- exits ---------------------------------------------------------------------------------------


def with_exits(**options: Any) -> S2SentSelector:
    """A selector of three blocks with gates at depths 2 and 3 of 4, all of them random."""
    selector = selector_of(SelectorConfig(width=WIDTH, num_blocks=3, exits=(2, 3), **options))
    with torch.no_grad():
        for parameter in selector.parameters():
            parameter.normal_(std=0.5)
    return selector


@pytest.mark.parametrize("input_norm", ["none", "rms"])
@pytest.mark.parametrize("num_frequencies", [0, 4])
def test_the_matrix_of_an_exit_can_read_all_blocks_that_it_fuses(
    num_frequencies: int, input_norm: str
) -> None:
    """fused @ W + sum_j block_j @ U_j over all blocks but the last, W and U_j below each other."""
    selector = with_exits(
        num_frequencies=num_frequencies,
        input_norm=input_norm,
        project_exits=True,
        project_blocks=True,
    )
    states = blocks_of(5)
    numbers = {2: [1, 2], 3: [1, 2, 3], 4: [2, 3, 4]}
    for depth, pooled in zip(numbers, selector.pool_exits(states, MASK, [*numbers]), strict=True):
        blocks = [states[number] for number in numbers[depth]]
        expected = selector.at(depth).pool(blocks, MASK)
        if depth != 4:
            scaled = [normed(each, "rms") if input_norm == "rms" else each for each in blocks]
            matrices = selector.projections[str(depth)].split(WIDTH)
            assert len(matrices) == len(blocks)
            expected = expected @ matrices[0]
            for block, matrix in zip(scaled[:-1], matrices[1:], strict=True):
                expected = expected + pool_tokens(block, MASK, "mean") @ matrix
        torch.testing.assert_close(pooled, expected)
        features = {"token_embeddings": states[depth], "all_layer_embeddings": states}
        tokens = selector(features | {"attention_mask": MASK})["token_embeddings"]
        torch.testing.assert_close(pool_tokens(tokens, MASK, "mean"), pooled)


def test_matrices_that_read_all_blocks_begin_as_the_identity() -> None:
    config = SelectorConfig(width=WIDTH, exits=(2, 3), project_exits=True, project_blocks=True)
    selector, plain = (
        S2SentSelector(each).double()
        for each in (config, replace(config, project_exits=False, project_blocks=False))
    )
    plain.load_state_dict(selector.state_dict(), strict=False)
    states = blocks_of(5)
    for ours, theirs in zip(
        *(each.pool_exits(states, MASK, [2, 3, 4]) for each in (selector, plain)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("num_frequencies", [0, 4, 16])
def test_an_exit_weighs_its_own_blocks_by_its_own_gate(
    num_frequencies: int, *, project: bool
) -> None:
    selector = with_exits(num_frequencies=num_frequencies, project_exits=project)
    states = blocks_of(5)
    matrices = {int(depth): matrix for depth, matrix in selector.projections.items()}
    assert sorted(matrices) == ([2, 3] if project else [])
    numbers = {2: [1, 2], 3: [1, 2, 3], 4: [2, 3, 4]}
    for depth, pooled in zip(numbers, selector.pool_exits(states, MASK, [*numbers]), strict=True):
        blocks = [states[number] for number in numbers[depth]]
        own = selector.at(depth)
        matrix = matrices.get(depth, torch.eye(WIDTH, dtype=pooled.dtype))
        torch.testing.assert_close(pooled, own.pool(blocks, MASK) @ matrix)
        features = {"token_embeddings": states[depth], "all_layer_embeddings": states}
        fused = selector(features | {"attention_mask": MASK})["token_embeddings"]
        torch.testing.assert_close(fused, own.fuse(blocks, MASK) @ matrix)
        torch.testing.assert_close(pool_tokens(fused, MASK, "mean"), pooled)
    assert [selector.at(depth).config.num_blocks for depth in (2, 3, 4)] == [2, 3, 3]
    assert selector.at(4) is selector


def test_the_exits_gates_are_saved_and_loaded(tmp_path: Path) -> None:
    selector, states = (
        with_exits(project_exits=True).float(),
        [state.float() for state in blocks_of(5)],
    )
    (tmp_path / "selector").mkdir()
    selector.save(str(tmp_path / "selector"))
    loaded = S2SentSelector.load(str(tmp_path / "selector"))
    assert loaded.config == selector.config
    before, after = (each.pool_exits(states, MASK, [2, 3, 4]) for each in (selector, loaded))
    for ours, theirs in zip(before, after, strict=True):
        assert torch.equal(ours, theirs)


def test_a_configuration_from_before_exits_is_read(tmp_path: Path) -> None:
    (tmp_path / "selector").mkdir()
    selector_of(SelectorConfig(width=WIDTH)).save(str(tmp_path / "selector"))
    path = tmp_path / "selector" / "config.json"
    old = json.loads(path.read_text())
    del old["exits"], old["project_exits"], old["project_blocks"]
    path.write_text(json.dumps(old))
    assert S2SentSelector.load(str(tmp_path / "selector")).config == SelectorConfig(width=WIDTH)


# --- configuration -------------------------------------------------------------------------------

BASE = SelectorConfig(width=24, num_blocks=3, num_frequencies=8)
CHANGES: dict[str, list[Any]] = {
    "width": [48],
    "num_blocks": [2, 4],
    "num_frequencies": [0, 1, 2, 4, 16],
    "reduction": [6],
    "spatial_selection": ["1d", "avg"],
    "block_choice": ["skip_last"],
    "activation": ["tanh"],
    "norm": ["batch", "layer"],
    "weight_norm": ["softmax_logits", "none", "exp", "global"],
    "bias": [False],
    "dct_grid": ["6x6"],
    "dct_norm": ["mean_ac", "ortho", "sum"],
    "frequency_policy": ["raw"],
    "frequency_seed": [1, 2],
    "mask": ["none"],
    "squeeze_scope": ["prefix", "token"],
    "input_norm": ["rms", "length"],
    "pooling": ["cls", "token"],
    "exits": [(3,)],
    "project_exits": [True],
    "project_blocks": [True],
}
READ = torch.tensor([2, 1, 0])  # the tokens that are read, of the sentences of MASK


def test_every_field_is_among_the_changes_tested() -> None:
    assert set(CHANGES) == {field.name for field in fields(SelectorConfig)}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in CHANGES.items() for value in values]
)
def test_every_value_of_every_field_changes_the_embedding(name: str, value: Any) -> None:
    base = BASE
    if value == "1d":
        base = replace(base, weight_norm="none")
    if value == "avg":
        base = replace(base, num_frequencies=4)
    if name.startswith("project_"):
        base = replace(base, exits=(3,), project_exits=name == "project_blocks")
    if value == "token":
        base = replace(base, num_frequencies=2)
    before, after = selector_of(base), selector_of(replace(base, **{name: value}))
    states = blocks_of(5, width=48)

    def embed(selector: S2SentSelector) -> Tensor:
        own_width = [state[..., : selector.config.width] for state in states]
        return torch.cat(selector.pool_exits(own_width, MASK, [3, 4], READ))

    difference = embed(after)[:, :24] - embed(before)
    assert difference.abs().max() > 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_frequencies": 3}, "num_frequencies is 3: choose one of 0, 1, 2, 4, 8, 16"),
        ({"num_frequencies": 16}, "at most the width 12"),
        ({"num_blocks": 0}, "num_blocks is 0: it must be at least 1"),
        ({"width": 0}, "width is 0: it must be at least 1"),
        ({"reduction": 0}, "reduction is 0: it must be at least 1"),
        ({"reduction": 13}, "reduction is 13: it must be at most the width 12"),
        ({"activation": "gelu"}, "activation is 'gelu': choose one of relu, tanh"),
        ({"bias": "yes"}, "bias is 'yes': it must be .*bool"),
        ({"project_exits": True}, "project_exits is True but there are no exits"),
        ({"exits": (3,), "project_blocks": True}, "set project_exits, and num_blocks to 2 or more"),
        ({"exits": (3, 2)}, r"exits is \(3, 2\): list rising depths"),
        ({"exits": (1, 2)}, "exits has 1, which cannot have a gate: .* single branch"),
        ({"num_blocks": 2.0}, "num_blocks is 2.0: it must be .*int"),
        ({"norm": "batch", "num_frequencies": 0}, "norm='batch' .* use 'layer'"),
        ({"dct_norm": "sum", "num_frequencies": 0}, "dct_norm changes nothing"),
        ({"frequency_seed": 1, "num_frequencies": 0}, "frequency_seed changes nothing"),
        ({"frequency_seed": -1}, "frequency_seed is -1: it must be at least 0"),
        ({"frequency_seed": 7, "dct_grid": "6x6"}, "frequency_seed=7 may draw .* 'exact'"),
        ({"frequency_seed": 7, "frequency_policy": "raw"}, "set 'filtered' and 'exact'"),
        ({"spatial_selection": "avg", "activation": "tanh"}, "activation changes nothing"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SelectorConfig(**{"width": 12, **options})


# --- as a module ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("safe_serialization", [True, False])
def test_a_saved_selector_is_loaded_as_it_was(
    name: str, safe_serialization: bool, tmp_path: Path
) -> None:
    selector = selector_of(SelectorConfig.preset(name, width=WIDTH)).float()
    folder = tmp_path / "1_S2SentSelector"
    folder.mkdir()
    selector.save(str(folder), safe_serialization=safe_serialization)
    loaded = S2SentSelector.load(str(tmp_path), subfolder=folder.name)
    assert loaded.config == selector.config
    for name, value in selector.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    assert (tmp_path / MODULE_FILE).is_file()


def test_weights_that_do_not_fit_are_refused() -> None:
    selector = S2SentSelector(SelectorConfig(width=WIDTH))
    with pytest.raises(RuntimeError, match="Missing key"):
        selector.load_state_dict(
            S2SentSelector(SelectorConfig(width=WIDTH, bias=False)).state_dict()
        )


def test_missing_inputs_are_named() -> None:
    selector = S2SentSelector(SelectorConfig(width=WIDTH))
    states = tuple(blocks_of(5))
    with pytest.raises(ValueError, match="no all_layer_embeddings"):
        selector({"token_embeddings": states[-1], "attention_mask": MASK})
    with pytest.raises(ValueError, match="no attention_mask"):
        selector({"token_embeddings": states[-1], "all_layer_embeddings": states})


def test_foreign_token_embeddings_are_taken_for_full_depth() -> None:
    selector = selector_of(SelectorConfig(width=WIDTH))
    states = tuple(blocks_of(5))
    features = {"all_layer_embeddings": states, "attention_mask": MASK}
    with pytest.warns(UserWarning, match="assuming full depth"):
        fused = selector({**features, "token_embeddings": states[-1].clone()})["token_embeddings"]
    assert torch.equal(fused, selector.fuse(states[-3:], MASK))


def test_the_squeeze_runs_in_full_precision_on_half_precision_states() -> None:
    config = SelectorConfig(width=WIDTH, dct_norm="sum")
    selector = selector_of(config)
    exact = [block.bfloat16() for block in blocks_of(3)]
    weights = selector.block_weights([block.double() for block in exact], MASK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = selector.block_weights(exact, MASK)
    assert (low - weights).abs().max() < 0.02
    assert selector.bfloat16().pool(exact, MASK).dtype == torch.bfloat16


class Pool(nn.Module):
    """`pool` as the forward pass of a module, which is what can be traced."""

    def __init__(self, selector: S2SentSelector) -> None:
        super().__init__()
        self.selector = selector

    def forward(self, mask: Tensor, *blocks: Tensor) -> Tensor:
        return self.selector.pool(blocks, mask)


TRACED: list[dict[str, Any]] = [
    {},
    {"num_frequencies": 0},
    {"norm": "layer", "activation": "tanh", "pooling": "cls"},
    {"norm": "batch", "weight_norm": "global", "dct_grid": "6x6", "mask": "none"},
    {"spatial_selection": "1d", "weight_norm": "exp", "dct_norm": "ortho"},
    {"spatial_selection": "avg"},
]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")  # still what exports
@pytest.mark.parametrize("options", TRACED, ids=str)
def test_pool_is_traced_for_every_batch_and_length(options: dict[str, Any]) -> None:
    """No warning of the tracer's means no control flow or shape was frozen into the graph."""
    selector = selector_of(SelectorConfig(width=WIDTH, **options))
    traced = torch.jit.trace(Pool(selector).eval(), (MASK, *blocks_of(3)))  # type: ignore[no-untyped-call]  # torch is partly typed
    blocks = [block[:1, :5] for block in blocks_of(3, seed=1)]
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    assert torch.allclose(traced(mask, *blocks), selector.pool(blocks, mask), rtol=0, atol=1e-12)
