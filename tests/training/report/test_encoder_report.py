"""The report: one file that holds everything, with the numbers that were measured."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.training.__main__ import main
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.encoders import open_encoder
from s2sent.training.evaluation.geometry import BlockWeights, Group
from s2sent.training.evaluation.measure import Measured
from s2sent.training.evaluation.results.use_of_tests import TEST_USE_FILE
from s2sent.training.evaluation.sts import score, with_average
from s2sent.training.files.jsonl import read_lines
from s2sent.training.files.record import write_record
from s2sent.training.report.encoder_report import render, write_report
from tests.support.server_process import running_server
from tests.support.tiny_tasks import tiny_tasks

CURVE = [[0, 40.0], [125, 61.25], [250, 60.5]]
DEV = {"score": 61.25, "step": 125, "curve": CURVE}


class Page(HTMLParser):
    """What a page has: its tags, headings, the cells of its rows, and whatever it would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.headings: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self._open = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open = tag
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        for name, value in attributes:
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")
            elif name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("td", "th"):
            self.rows[-1][-1] += data
        elif self._open == "h2":
            self.headings.append(data)

    def row(self, name: str) -> list[str]:
        """The cells of the first row with this head."""
        return next(row for row in self.rows if row and row[0] == name)


def measured(name: str, shift: float = 0) -> Measured:
    """Made-up measurements."""
    random = np.random.default_rng(0)
    groups = [Group(n, n + 1, random.normal(n / 6, 0.1, 20) + shift) for n in range(5)]
    tasks = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
    sts = with_average({task: 70 + place + shift for place, task in enumerate(tasks)})
    return Measured(name, sts, {"alignment": 0.25, "uniformity": -2.5}, groups)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tasks(tmp_path_factory.mktemp("data"))


def test_a_checkpoints_report_has_every_section_and_the_scores_of_evaluate(
    data: Path, tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    (checkpoint / "training.json").write_text(json.dumps({"dev": DEV}))
    backbone = str(tiny_checkpoint.parent / "backbone")
    output = tmp_path / "new" / "report.html"
    with pytest.raises(SystemExit, match="0"):
        main(
            ["report", str(checkpoint), "--data", str(data), "--output", str(output)]
            + ["--beside", backbone]
        )
    assert capsys.readouterr().out == f"{output}\n"
    html = output.read_text()
    page = Page(html)
    assert page.headings == [
        *("Semantic textual similarity", "Transfer", "Cosine by gold score"),
        *("Alignment and uniformity", "Fusion weights", "Dev curve", "This file"),
    ]
    for name in (str(checkpoint), backbone):
        expected = with_average(score(open_encoder(name), data / "sts"))
        assert page.row(name)[1:] == [f"{value:.2f}" for value in expected.values()]
    assert page.row("SimCSE-BERT base, S2Sent")[-1] == "78.50"
    assert page.row("block 4")[0] == "block 4"
    assert page.tags.count("figure") == page.tags.count("figcaption") == 4
    assert html.count("s2sent-train report") == 5  # under each figure and at the end
    assert "61.25" in html  # of the step that was kept
    assert [line["name"] for line in read_lines(tmp_path / TEST_USE_FILE)] == ["checkpoint"]


def test_the_curve_marks_the_step_that_was_kept_and_leaves_out_what_has_no_score() -> None:
    """A resumed run may have kept another step than the curve's best; a score may be no number."""
    dev = {"score": 60.75, "step": 200, "curve": [*CURVE, [375, None]]}
    html = render([measured("a")], None, {"dev": dev}, "make")
    assert ">60.75<" in html
    assert ">61.25<" not in html
    html = render([measured("a")], None, {"dev": {**dev, "curve": [[0, None]]}}, "make")
    assert "No step had a finite score." in html
    html = render([measured("a")], None, {"dev": {"curve": CURVE}}, "make")
    assert "red dot" not in html


def test_a_report_that_cannot_be_written_opens_no_test(
    data: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    write_record(checkpoint, {"recipe": {"seed": 1}})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="report.html cannot be written"):
        write_report(str(checkpoint), data, tmp_path / "file" / "report.html")
    assert not (tmp_path / TEST_USE_FILE).exists()


@pytest.mark.usefixtures("few_folds")
def test_a_report_with_transfer_has_its_table(data: Path, tiny_checkpoint: Path) -> None:
    output = tiny_checkpoint.parent / "transfer.html"
    (found,) = write_report(str(tiny_checkpoint), data, output, transfer=True)
    assert found.transfer is not None
    rows = [row for row in Page(output.read_text()).rows if row[0] == str(tiny_checkpoint)]
    assert [f"{value:.2f}" for value in found.transfer.values()] in [row[1:] for row in rows]


def test_an_artifact_and_its_service_are_reported_alike(
    data: Path, tiny_artifact: Artifact, tmp_path: Path
) -> None:
    """To the second decimal; neither shows its weights, and the report says so."""
    path = str(tiny_artifact.path)
    with running_server(tiny_artifact.path) as server:
        write_report(server.url, data, tmp_path / "report.html", beside=[path])
    html = (tmp_path / "report.html").read_text()
    page = Page(html)
    served, direct = (
        np.array([float(cell) for cell in page.row(name)[1:]]) for name in (server.url, path)
    )
    np.testing.assert_allclose(served, direct, atol=0.02)
    assert "An artifact or a service does not show its weights" in html


def test_a_page_fetches_nothing_runs_nothing_and_names_nothing_twice() -> None:
    weights = BlockWeights((1, 2), np.full((2, 8), 0.5), np.zeros(2))
    html = render([measured("a"), measured("b", 1)], weights, {"dev": {"curve": CURVE}}, "make")
    page = Page(html)
    assert "script" not in page.tags
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    assert not re.search(r"url\((?!#)|@import", html)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_the_same_measurements_give_the_same_file() -> None:
    pages = {render([measured("a")], None, {"dev": {"curve": CURVE}}, "make") for _ in range(2)}
    assert len(pages) == 1


def test_names_are_text_and_not_markup() -> None:
    html = render([measured("<b>&$x$")], None, {}, "make <it>")
    assert "<b>&$" not in html
    assert "make &lt;it&gt;" in html
    assert Page(html).row("<b>&$x$")


def test_figures_have_the_pages_text_colour() -> None:
    html = render([measured("a")], None, {"dev": {"curve": CURVE}}, "make")
    assert "#010203" not in html
    assert "currentColor" in html


def test_differences_are_the_first_row_minus_the_other() -> None:
    rows = Page(render([measured("a"), measured("b", 1.5)], None, {}, "make")).rows
    assert ["· first row minus this", *["−1.50"] * 8] in rows
