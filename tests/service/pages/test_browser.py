"""The playground in a real browser, against a real server that asks for a key."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page, Route, expect

from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from tests.support.browser import clean_page, violations, with_chromium
from tests.support.few import FEW
from tests.support.playground import KEY, TEXTS, VIEWS, paste, unlock, view
from tests.support.server_process import ServerProcess, running_server

pytestmark = with_chromium


@contextmanager
def held_back(page: Page, url: str, held: Callable[[dict[str, Any]], bool]) -> Iterator[None]:
    """The one request with such a body is answered at the end only."""
    kept: list[Route] = []

    def hold(route: Route) -> None:
        if held(json.loads(route.request.post_data or "{}")):
            kept.append(route)
        else:
            route.continue_()

    page.route(url, hold)
    yield
    (late,) = kept
    with page.expect_event("requestfinished", lambda request: request == late.request):
        late.continue_()
    page.evaluate("new Promise((done) => setTimeout(done, 100))")  # the page takes the answer
    page.unroute(url)


def vectors(server: ServerProcess, **options: Any) -> NDArray[np.float64]:
    answer = server.client.post("/embed", json={"inputs": TEXTS, **options})
    assert answer.status_code == 200, answer.text
    return np.array(answer.json())


def positions(page: Page, hits: str) -> list[int]:
    lines = page.locator(f"{hits} li").all()
    return [int(line.get_attribute("data-position") or "") for line in lines]


def test_the_page_asks_for_the_key_and_keeps_it_out_of_the_browsers_stores(
    browser: Browser, server: ServerProcess
) -> None:
    with clean_page(browser, server.url) as page:
        page.goto("/playground")
        expect(page.locator("#notice")).to_contain_text("The API key is missing")
        expect(page.locator("#notice")).not_to_contain_text("Authorization")  # is for programs
        page.fill("#texts", "my own text\nand another\nand a third")
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        expect(page.locator("#notice")).to_contain_text("is not known")
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        expect(page.locator("body")).to_have_attribute("data-embedded", "3")
        expect(page.locator("#notice")).to_be_hidden()
        assert page.input_value("#texts").startswith("my own text")
        stored = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
        assert KEY not in stored
        page.reload()
        expect(page.locator("#notice")).to_contain_text("The API key is missing")


def test_the_cells_of_the_heat_map_are_the_apis_cosines(page: Page, server: ServerProcess) -> None:
    paste(page, TEXTS)
    page.focus("#heatmap")
    row, column = 0, 0
    for key, step in (("ArrowRight", (0, 1)), ("ArrowDown", (1, 0)), ("ArrowRight", (0, 1))):
        page.keyboard.press(key)
        row, column = row + step[0], column + step[1]
        expect(page.locator("#cell p").first).to_contain_text(TEXTS[row])
        expect(page.locator("#cell p").last).to_contain_text(TEXTS[column])
        pairs = {"pairs": [[TEXTS[row], TEXTS[column]]]}
        (cosine,) = server.client.post("/similarity", json={"inputs": pairs}).json()
        shown = page.locator("#cell strong").inner_text().replace("−", "-")
        assert float(shown) == pytest.approx(cosine, abs=1e-4)


def test_the_closest_and_farthest_pairs_are_those_of_the_vectors(
    page: Page, server: ServerProcess
) -> None:
    paste(page, TEXTS)
    rows = vectors(server)
    upper = np.sort((rows @ rows.T)[np.triu_indices(len(TEXTS), 1)])
    for name, expected in (("closest", upper[::-1][:6]), ("farthest", upper[:6])):
        expect(page.locator(f"#{name} li")).to_have_count(6)
        shown = [
            text.replace("−", "-") for text in page.locator(f"#{name} strong").all_inner_texts()
        ]
        np.testing.assert_allclose([float(text) for text in shown], expected, atol=1e-3)


def test_search_ranks_as_the_api_does(page: Page, server: ServerProcess) -> None:
    paste(page, TEXTS)
    view(page, "search")
    page.fill("#query", "dogs in the street")
    expect(page.locator("#hits")).to_have_attribute("data-query", "dogs in the street")
    inputs = {"queries": ["dogs in the street"], "documents": TEXTS}
    (ranked,) = server.client.post("/similarity", json={"inputs": inputs}).json()
    assert positions(page, "#hits") == [one["index"] for one in ranked]


def test_the_sliders_show_the_neighbours_of_that_depth_and_width(
    page: Page, server: ServerProcess
) -> None:
    paste(page, TEXTS)
    view(page, "depth")
    expect(page.locator("#cost dd").first).to_have_text("1.0000")
    page.locator("#depth-slider").fill("0")
    page.locator("#dimensions-slider").fill("12")
    expect(page.locator("#depth-value")).to_have_text("2 of 6")
    expect(page.locator("#cost dd").last).to_have_text("48")
    expect(page.locator("#cost dd").first).not_to_have_text("1.0000")
    for hits, options in (("full", {}), ("chosen", {"depth": 2, "dimensions": 12})):
        scores = vectors(server, **options) @ vectors(server, **options)[0]
        order = [int(one) for one in np.argsort(-scores, kind="stable") if one]
        assert positions(page, f"#neighbours-{hits}") == order
    page.click("#measure")
    rows = page.locator("#depth-table tbody tr")
    expect(rows).to_have_count(4)
    assert rows.locator("th").all_inner_texts() == ["2", "3", "4", "6"]
    expect(rows.last.locator("td").first).to_contain_text(".")  # all times come at the end
    assert all(float(cell) > 0 for cell in rows.locator("td:nth-child(2)").all_inner_texts())
    for cell in rows.locator("td:nth-child(3)").all_inner_texts():
        low, high = map(float, cell.split(" to "))
        assert 0 < low <= high


def test_the_bars_are_the_block_weights(page: Page, server: ServerProcess) -> None:
    paste(page, TEXTS)
    view(page, "blocks")
    rows = page.locator("#block-bars .bar-row")
    expect(rows).to_have_count(len(TEXTS) + 1)
    shown = [json.loads(row.get_attribute("data-weights") or "") for row in rows.all()]
    texts = server.client.post("/explain", json={"inputs": TEXTS}).json()["texts"]
    expected = [[block["mean"] for block in text["blocks"]] for text in texts]
    np.testing.assert_allclose(shown[1:], expected, atol=1e-5)
    np.testing.assert_allclose(shown[0], np.mean(expected, axis=0), atol=1e-5)
    assert page.locator("#block-legend span").all_inner_texts() == ["block 4", "block 5", "block 6"]


@pytest.fixture(scope="module")
def prompted_artifact(exits_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """With a default prompt, some of whose characters take two bytes."""
    folder = tmp_path_factory.mktemp("prompted")
    shutil.copytree(exits_checkpoint, folder / "checkpoint")
    settings = folder / "checkpoint" / "config_sentence_transformers.json"
    prompts = {
        "prompts": {"query": "thé red dog: ", "other": "music and books "},
        "default_prompt_name": "query",
    }
    settings.write_text(json.dumps(json.loads(settings.read_text()) | prompts))
    return export_checkpoint(folder / "checkpoint", folder / "artifact", FEW)


@pytest.mark.parametrize("kind", ["prompted_artifact", "decoder_artifact"])
def test_where_a_text_is_cut_is_shown_also_behind_a_prompt_or_in_a_template(
    browser: Browser, request: pytest.FixtureRequest, kind: str
) -> None:
    """What is marked as read is the longest beginning of the text that the model reads whole."""
    artifact: Artifact = request.getfixturevalue(kind)
    text = "the cat sings and two dogs read books in the green city at night " * 8
    with running_server(artifact.path) as server, clean_page(browser, server.url) as page:
        page.goto("/playground")
        expect(page.locator("body")).to_have_attribute("data-embedded", "12")
        first = page.locator("#prompt option").first.inner_text()
        assert first == ("default: query" if kind == "prompted_artifact" else "none")
        paste(page, [text, "a cat"])
        view(page, "tokens")
        page.click("#token-list button")
        expect(page.locator("#token-list em")).to_contain_text("characters were not read")
        whole, rest = page.locator("#token-list li").first.locator("span, mark").all_inner_texts()
        read = whole.removesuffix(rest)
        inputs = {"inputs": [text], "details": True}
        (told,) = server.client.post("/embed", json=inputs).json()["details"]["texts"]
        longer = read + text[len(read) : len(read) + 8]
        for beginning, over in ((read, False), (longer, True)):
            (spans,) = server.client.post("/tokenize", json={"inputs": beginning}).json()
            assert (len(spans) > told["tokens"]) == over


def test_two_clicks_on_measure_make_one_table(page: Page) -> None:
    paste(page, TEXTS)
    view(page, "depth")
    page.dblclick("#measure")
    heads = page.locator("#depth-table tbody th")
    expect(heads.last).to_have_text("6")
    assert heads.all_inner_texts() == ["2", "3", "4", "6"]


def test_times_of_earlier_texts_are_not_added_to_the_table(page: Page) -> None:
    paste(page, TEXTS)
    view(page, "depth")
    expect(page.locator("#cost dd")).to_have_count(4)
    with held_back(page, "**/embed", lambda body: body.get("depth") == 3):
        page.click("#measure")
        expect(page.locator("#depth-table tbody th")).to_have_text("2")
        paste(page, TEXTS[:3])
    expect(page.locator("#depth-table tbody th")).to_have_count(0)


def test_one_text_has_no_neighbours(page: Page) -> None:
    """Those of the texts before it go."""
    paste(page, TEXTS)
    view(page, "depth")
    expect(page.locator("#cost dd")).to_have_count(4)
    paste(page, TEXTS[:1])
    expect(page.locator("#neighbours-full li")).to_have_count(0)
    expect(page.locator("#cost dd")).to_have_count(0)


def test_vectors_of_earlier_texts_that_come_late_are_not_compared(page: Page) -> None:
    earlier = ["one early text", *TEXTS[1:]]
    paste(page, earlier)
    view(page, "depth")
    expect(page.locator("#cost dd").first).to_have_text("1.0000")
    with held_back(
        page, "**/embed", lambda body: body.get("depth") == 2 and earlier[0] in body["inputs"]
    ):
        page.locator("#depth-slider").fill("0")
        paste(page, TEXTS)
        expect(page.locator("#cost dd")).to_have_count(4)
        shown = page.locator("#neighbours-chosen").inner_text()
    assert page.locator("#neighbours-chosen").inner_text() == shown
    page.locator("#anchor").select_option("1")
    page.locator("#anchor").select_option("0")
    expect(page.locator("#neighbours-chosen")).to_have_text(shown, use_inner_text=True)


def test_bars_of_earlier_texts_that_come_late_are_not_shown(page: Page) -> None:
    with held_back(page, "**/explain", lambda body: "A man is playing" in str(body["inputs"])):
        view(page, "blocks")
        paste(page, TEXTS)
        labels = page.locator("#block-bars .bar-row > span")
        expect(labels).to_have_count(len(TEXTS) + 1)
    assert labels.all_inner_texts()[1:] == TEXTS


def test_a_character_of_two_units_is_not_cut_in_half(page: Page) -> None:
    paste(page, ["x" * 1999 + "\N{GRINNING FACE} and more", *TEXTS])
    view(page, "depth")
    expect(page.locator("#cost dd")).to_have_count(4)
    expect(page.locator("#notice")).to_be_hidden()


def test_texts_on_a_line_have_no_second_component(page: Page) -> None:
    """Of three texts two are equal: what is left is rounding, which must not become an axis."""
    points, explained = page.evaluate("""async () => {
      const { principalComponents } = await import("/static/vectors.js");
      const [a, b] = [Float32Array.of(0.6, 0.48, 0.64), Float32Array.of(0.1, -0.7, 0.7)];
      const { points, explained } = principalComponents([a, a, b]);
      return [points, explained];
    }""")
    assert [y for _, y in points] == [0, 0, 0]
    assert explained == pytest.approx(1)


def test_the_map_has_a_dot_for_each_text(page: Page) -> None:
    paste(page, TEXTS)
    view(page, "map")
    expect(page.locator("#scatter circle")).to_have_count(len(TEXTS))
    page.locator("#scatter circle").nth(3).hover(force=True)
    expect(page.locator("#point p")).to_have_text(TEXTS[3])


def test_the_live_panel_moves_under_load(page: Page, server: ServerProcess) -> None:
    view(page, "live")
    rate = page.locator("#live-tiles dd").first
    expect(rate).to_be_visible()
    ended = threading.Event()

    def load() -> None:
        with httpx.Client(
            base_url=server.url, headers=server.client.headers, trust_env=False
        ) as client:
            while not ended.is_set():
                client.post("/embed", json={"inputs": "a dog runs"})

    thread = threading.Thread(target=load)
    thread.start()
    try:
        expect(rate).not_to_have_text("0.0")
        expect(page.locator("#live-tiles dd").nth(1)).to_contain_text("ms")
    finally:
        ended.set()
        thread.join()
    expect(page.locator("#live canvas")).to_have_count(4)


def test_markup_in_a_text_is_shown_as_text(page: Page) -> None:
    evil = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    paste(page, [evil, *TEXTS])
    page.focus("#heatmap")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#cell p").first).to_contain_text("<script>document.title=")
    for name in ("blocks", "tokens", "map"):
        view(page, name)
    assert page.title() == "S2Sent playground"
    assert page.locator("#output img, #output script").count() == 0


def test_of_ten_thousand_lines_some_are_compared_and_all_are_kept(page: Page) -> None:
    lines = [f"the {number} dogs" for number in range(10_000)]
    paste(page, lines, embedded=1_000)
    expect(page.locator("#progress")).to_contain_text("9,000 of 10,000 are left out")
    assert page.input_value("#texts").count("\n") == 9_999


def test_a_text_of_a_megabyte_is_embedded_and_shown_where_it_is_cut(page: Page) -> None:
    paste(page, ["the dog eats " * 80_000, *TEXTS])
    view(page, "tokens")
    expect(page.locator("#tokens-summary")).to_contain_text("1 text was cut")
    page.click("#token-list button")
    expect(page.locator("#token-list em")).to_contain_text("characters were not read")
    read, rest = page.locator("#token-list li").first.locator("span, mark").all_inner_texts()
    assert read.startswith("the dog eats")
    assert read.endswith(rest)


FAULTS: list[tuple[Callable[[Route], None], str]] = [
    (lambda route: refuse(route, 401, "The key is gone."), "Type the key"),
    (lambda route: refuse(route, 429, "Too busy.", {"Retry-After": "7"}), "in 7 s"),
    (lambda route: refuse(route, 503, "Not ready."), "starting or stopping"),
    (lambda route: route.abort(), "The server does not answer."),
]


def test_a_failure_is_told_with_what_to_do_and_nothing_pasted_is_lost(page: Page) -> None:
    for fault, told in FAULTS:
        paste(page, TEXTS)
        page.route("**/embed", fault)
        page.fill("#texts", "kept one\nkept two")
        page.click("#embed")
        expect(page.locator("#notice")).to_contain_text(told)
        assert page.input_value("#texts") == "kept one\nkept two"
        page.unroute("**/embed")
        page.click("#embed")
        expect(page.locator("body")).to_have_attribute("data-embedded", "2")
        expect(page.locator("#notice")).to_be_hidden()


def refuse(route: Route, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
    route.fulfill(status=status, headers=headers or {}, json={"error": sentence, "error_type": "x"})


def test_a_csv_file_gives_its_column_of_texts(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text('id,text\n1,"a dog, ""runs"""\n2,the cat sings\n3,a red train\n')
    page.set_input_files("#file", file)
    expect(page.locator("body")).to_have_attribute("data-embedded", "3")
    assert page.input_value("#texts").splitlines() == [
        'a dog, "runs"',
        "the cat sings",
        "a red train",
    ]


def test_code_asks_for_what_is_on_screen_and_does_not_show_the_key(page: Page) -> None:
    paste(page, TEXTS)
    view(page, "depth")
    page.locator("#dimensions-slider").fill("12")
    for language, call in (("curl", "curl -s"), ("python", "httpx.post"), ("javascript", "fetch(")):
        page.click(f'[data-language="{language}"]')
        expect(page.locator("#snippet")).to_contain_text(call)
        code = page.locator("#snippet").inner_text()
        assert all(part in code for part in ("/embed", '"dimensions"', TEXTS[0], "S2SENT_API_KEY"))
        assert KEY not in code


def test_a_server_of_small_requests_and_other_defaults_shows_the_whole_embedding(
    browser: Browser, exits_artifact: Artifact
) -> None:
    """Requests have no more texts than it takes, and the code of a view gives what it shows."""
    settings = ["--max-client-batch-size", "4", "--default-depth", "2", "--default-dimensions", "8"]
    with (
        running_server(exits_artifact.path, "--no-log-requests", *settings) as server,
        clean_page(browser, server.url) as page,
    ):
        page.goto("/playground")
        expect(page.locator("body")).to_have_attribute("data-embedded", "12")
        info = server.client.get("/info").json()
        depth, dimensions = {"depth": info["full_depth"]}, {"dimensions": info["dim"]}
        for name, options in (("cosines", depth | dimensions), ("blocks", depth)):
            view(page, name)
            assert {"inputs": ANY, **options} == body_of_code(page)
        view(page, "search")
        page.fill("#query", "music")
        expect(page.locator("#hits")).to_have_attribute("data-query", "music")
        check_scores(page, server, first_texts(body_of_code(page), 3))
        view(page, "blocks")
        expect(page.locator("#block-bars")).to_contain_text("The first 4 texts")


def test_the_code_of_a_search_by_a_prompt_gives_its_scores(
    browser: Browser, prompted_artifact: Artifact
) -> None:
    with (
        running_server(prompted_artifact.path) as server,
        clean_page(browser, server.url) as page,
    ):
        page.goto("/playground")
        expect(page.locator("body")).to_have_attribute("data-embedded", "12")
        view(page, "search")
        page.fill("#query", "music")
        expect(page.locator("#hits")).to_have_attribute("data-query", "music")
        assert "parameters" not in body_of_code(page)
        page.select_option("#prompt", "other")
        body = body_of_code(page)
        prompts = {"prompt_name": "other", "documents_prompt_name": "query"}
        assert body["parameters"] == prompts
        check_scores(page, server, body)


def check_scores(page: Page, server: ServerProcess, body: dict[str, Any]) -> None:
    """The page shows the scores that the body of a ranking gives."""
    for hit in server.client.post("/similarity", json=body).json()[0]:
        shown = page.locator(f'#hits li[data-position="{hit["index"]}"] strong')
        expect(shown).to_have_text(f"{hit['score']:.3f}")


def body_of_code(page: Page) -> dict[str, Any]:
    """The body that the view's code in Python sends."""
    page.click('[data-language="python"]')
    code = page.locator("#snippet").inner_text()
    body: dict[str, Any] = json.loads(code.partition("body = ")[2].partition("\nanswer = ")[0])
    return body


def first_texts(body: dict[str, Any], count: int) -> dict[str, Any]:
    inputs = body["inputs"]
    return body | {"inputs": inputs | {"documents": inputs["documents"][:count]}}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_an_accessibility_violation(
    browser: Browser, server: ServerProcess, scheme: str
) -> None:
    """The tabs are chosen by keyboard."""
    with clean_page(browser, server.url, color_scheme=scheme) as page:
        unlock(page)
        page.focus("#tab-cosines")
        for place, name in enumerate(VIEWS):
            if place:
                page.keyboard.press("ArrowRight")
            expect(page.locator(f"#{name}")).to_be_visible()
            assert violations(page) == [], name


def test_a_phone_shows_everything_in_its_width(browser: Browser, server: ServerProcess) -> None:
    with clean_page(browser, server.url, viewport={"width": 390, "height": 844}) as page:
        unlock(page)
        for name in VIEWS:
            view(page, name)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name


def test_the_reference_sends_its_examples(browser: Browser, server: ServerProcess) -> None:
    with clean_page(browser, server.url) as page:
        page.goto("/docs")
        page.fill('input[type="password"]', KEY)
        route = page.locator('details[data-path="/embed"]')
        route.locator("summary").click()
        body = route.locator("textarea")
        body.fill(body.input_value().replace("Someone plays music.", "a dog runs"))
        route.locator("button").click()
        expect(route.locator("p")).to_contain_text("200")
        answer = json.loads(route.locator("pre").inner_text())
        assert len(answer) == 2
        body.fill("{")
        route.locator("button").click()
        expect(route.locator("p")).to_contain_text("The body is not JSON")
        assert violations(page) == []


def test_the_start_page_leads_to_the_playground(browser: Browser, server: ServerProcess) -> None:
    with clean_page(browser, server.url) as page:
        page.goto("/")
        assert violations(page) == []
        page.click("text=Playground")
        expect(page.locator("#notice")).to_contain_text("The API key is missing")
