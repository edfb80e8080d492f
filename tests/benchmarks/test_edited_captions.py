"""The study of edited captions: which pairs it asks about, and what it prints of an encoder."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import edited_captions
from s2sent.training.evaluation.sts import Encode
from s2sent.training.sources import caption_edits
from s2sent.training.sources.caption_edits import make_pairs, split_pictures


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of 60 pictures, of which 40 are held out."""
    monkeypatch.setattr(caption_edits, "HELD_OUT", 40)
    header = [f"caption{number}" for number in range(1, 6)]
    rows = [[f"A man is on street{row} of town{n}" for n in range(5)] for row in range(60)]
    text = "".join("\t".join(row) + "\n" for row in [header, *rows])
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "captions.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_pairs_are_of_pictures_that_are_held_out(data: Path) -> None:
    """Edits of all of them, captions of one and of two pictures of half of them."""
    used, held_out = split_pictures(data / "corpus")
    pairs = edited_captions.held_out_pairs(data / "corpus")
    assert pairs["edits"] == make_pairs(held_out, seed=99)
    assert pairs["edits"]
    street = {caption: row[0].split()[4] for row in held_out for caption in row}
    assert all(street[first] == street[second] for first, second in pairs["one picture"])
    assert all(street[first] != street[second] for first, second in pairs["two pictures"])
    assert len(pairs["one picture"]) == len(pairs["two pictures"]) == 20
    assert not {caption for row in used for caption in row} & set(street)


def test_a_row_has_the_rank_correlation_with_the_teacher(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 for the teacher itself and for vectors of another length; less for other angles."""

    def encoder(name: str) -> Encode:
        def encode(texts: Sequence[str]) -> np.ndarray:
            number = len if name == "other" else lambda text: sum(map(ord, text))
            radians = np.deg2rad([number(text) * 7 % 89 for text in texts])
            unit = np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)
            return unit * 2 if name == "longer" else unit

        return encode

    monkeypatch.setattr(edited_captions, "open_encoder", encoder)
    edited_captions.main(["teacher", "longer", "other"], data, teacher="teacher")
    _, _, same, longer, other = capsys.readouterr().out.splitlines()
    assert same == "| teacher | 1.0000 | 1.0000 | 1.0000 |"
    assert longer == "| longer | 1.0000 | 1.0000 | 1.0000 |"
    assert float(other.split("|")[2]) < 0.9
