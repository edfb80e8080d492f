"""Geometry: alignment, uniformity, cosines by gold score and block weights, against hand counts."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from s2sent.training.errors import DataError
from s2sent.training.evaluation.geometry import (
    GEOMETRY_FILE,
    GRID,
    Group,
    block_weights,
    describe_groups,
    geometry,
    groups_by_gold,
)
from tests.support.tiny_data import write_table
from tests.support.tiny_tasks import STS_HEADER

ANGLES = {"east": 0, "also east": 0, "north": 90, "west": 180}
TEXTS = ["a dog eats", "the cat sings in the city", "two birds", "a man plays the guitar at night"]


def compass(texts: Sequence[str]) -> NDArray[np.float32]:
    """An encoder into the plane, with lengths that are not 1."""
    angles = np.radians([ANGLES[text] for text in texts])
    return 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def write_pairs(folder: Path, *pairs: tuple[str, str, str]) -> Path:
    rows = [("x", gold, first, second) for gold, first, second in pairs]
    write_table(folder / GEOMETRY_FILE, [STS_HEADER, *rows])
    return folder


def test_alignment_and_uniformity_are_those_of_unit_vectors(tmp_path: Path) -> None:
    """Squared distances on the circle: 0 at the same angle, 2 at right angles, 4 opposite."""
    folder = write_pairs(
        tmp_path,
        *[("5", "east", "also east"), ("4.5", "east", "north"), ("4", "east", "west")],
    )
    found = geometry(compass, folder)
    distances = [0, 2, 4, 2, 4, 2]  # each pair of the four sentences, once
    assert found["alignment"] == pytest.approx((0 + 2) / 2)  # a score of 4 is not above 4
    uniformity = math.log(sum(math.exp(-2 * d) for d in distances) / 6)
    assert found["uniformity"] == pytest.approx(uniformity)
    assert found["pos_over_random"] == pytest.approx(1 / (sum(distances) / 6))
    assert found["align_over_abs_uniform"] == pytest.approx(1 / abs(uniformity))


def test_a_file_without_positive_pairs_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{GEOMETRY_FILE} has no score above 4"):
        geometry(compass, write_pairs(tmp_path, ("4", "east", "north")))


def test_an_encoder_that_gives_one_vector_has_no_ratios(tmp_path: Path) -> None:
    found = geometry(
        lambda texts: np.ones((len(texts), 1), np.float32),
        write_pairs(tmp_path, ("5", "east", "north")),
    )
    assert (found["alignment"], found["uniformity"]) == (0, 0)
    assert math.isnan(found["pos_over_random"])
    assert math.isnan(found["align_over_abs_uniform"])


def test_a_bound_belongs_to_the_group_below_it_and_0_to_the_first(tmp_path: Path) -> None:
    golds = ["0", "1", "1.01", "2", "3", "3.5", "4.2", "5"]
    folder = write_pairs(tmp_path, *((gold, "east", "north") for gold in golds))
    groups = groups_by_gold(compass, folder)
    assert {group.name: len(group.cosines) for group in groups} == {
        **{"0-1": 2, "1-2": 2, "2-3": 1, "3-4": 1, "4-5": 2}
    }


def test_a_group_without_pairs_is_named(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path, ("1", "east", "north"), ("5", "east", "north"))
    with pytest.raises(DataError, match="no pair with a gold score in 1-2, 2-3, 3-4"):
        groups_by_gold(compass, folder)


def test_the_overlap_is_1_for_equal_groups_and_0_for_distant_ones() -> None:
    near, far = np.array([0.1, 0.2, 0.3]), np.array([0.8, 0.85, 0.9])
    groups = [Group(0, 1, near), Group(1, 2, near), Group(2, 3, far)]
    described = describe_groups(groups)
    assert described["overlap"]["0-1 and 1-2"] == pytest.approx(1)
    assert described["overlap"]["1-2 and 2-3"] == pytest.approx(0, abs=0.01)
    assert described["groups"]["2-3"]["mean"] == pytest.approx(0.85)
    assert described["spread"] == pytest.approx(np.std([0.2, 0.2, 0.85]))


@pytest.mark.parametrize("cosines", [[0.5], [0.5, 0.5], [-1.0, 1.0]])
def test_a_density_integrates_to_1(cosines: list[float]) -> None:
    """Also of one pair, of equal ones, and at the ends."""
    density = Group(0, 1, np.array(cosines)).density()
    assert float(density.sum()) * (GRID[1] - GRID[0]) == pytest.approx(1)


@pytest.mark.parametrize("options", [{}, {"num_frequencies": 0}], ids=["sentence", "token"])
def test_block_weights_are_the_mean_of_each_sentences_own(
    tiny_checkpoint: Path, options: dict[str, int]
) -> None:
    """Sentence by sentence without padding gives the same as batches: [blocks, features]."""
    import torch

    from s2sent.model.network.encoder import build_encoder, get_selector
    from s2sent.model.network.selector_config import SelectorConfig

    config = SelectorConfig(width=32, reduction=4, **options)  # type: ignore[arg-type]  # ints
    encoder = build_encoder(tiny_checkpoint.parent / "backbone", config)
    selector = get_selector(encoder)
    for parameter in selector.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    found = block_weights(encoder, TEXTS)
    assert found is not None

    rows = []
    for text in TEXTS:
        features = encoder[0](encoder.tokenize([text]))
        blocks = selector.select_blocks(features["all_layer_embeddings"])
        rows.append(selector.block_weights(blocks, features["attention_mask"]).mean((1, 2)))
    each = torch.stack(rows).detach().numpy()  # [sentences, blocks, features]
    assert found.blocks == (2, 3, 4)
    np.testing.assert_allclose(found.mean, each.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.spread, each.std(0).mean(1), atol=1e-5)


def test_a_plain_average_weighs_every_block_alike_and_no_selector_weighs_nothing(
    tiny_checkpoint: Path,
) -> None:
    from s2sent.model.network.encoder import build_encoder
    from s2sent.model.network.selector_config import SelectorConfig
    from s2sent.training.evaluation.encoders import open_torch

    backbone = tiny_checkpoint.parent / "backbone"
    average = SelectorConfig(width=32, num_blocks=2, spatial_selection="avg")
    found = block_weights(build_encoder(backbone, average), TEXTS)
    assert found is not None
    np.testing.assert_allclose(found.mean, np.full((2, 32), 0.5))
    np.testing.assert_allclose(found.spread, 0, atol=1e-7)
    assert block_weights(open_torch(str(backbone)), TEXTS) is None
