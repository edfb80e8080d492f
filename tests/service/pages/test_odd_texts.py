"""The playground of no texts, one text, equal texts and unknown symbols; Live; a phone's screen."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import clean_page, with_chromium
from tests.support.playground import TEXTS, VIEWS, paste, unlock, view
from tests.support.server_process import ServerProcess

pytestmark = with_chromium


def test_of_no_texts_each_view_says_what_to_do(page: Page) -> None:
    paste(page, [*TEXTS, "\N{AUTOMOBILE}"])
    expect(page.locator("#unknown")).to_be_visible()
    page.fill("#texts", " \n ")
    page.click("#embed")
    expect(page.locator("#notice")).to_contain_text("There is no text.")
    expect(page.locator("#unknown")).to_be_hidden()
    expect(page.locator("#count")).to_have_text("0 texts")
    for name in VIEWS:
        view(page, name)
        expect(page.locator("#nothing")).to_be_visible(visible=name != "live")
        expect(page.locator(f"#{name}")).to_be_visible(visible=name == "live")
    paste(page, TEXTS)
    view(page, "cosines")
    expect(page.locator("#nothing")).to_be_hidden()
    expect(page.locator("#closest li")).to_have_count(6)


def test_of_one_text_each_view_says_something_sensible(page: Page) -> None:
    for name, said in (
        ("cosines", "One text has no cosine with another."),
        ("cosines", "One text has no pairs."),
        ("depth", "One text has no neighbours."),
        ("blocks", "a dog runs"),
        ("tokens", "in 1 text, special tokens included"),
        ("map", "A map needs at least three texts."),
    ):
        paste(page, TEXTS)
        view(page, name)
        paste(page, ["a dog runs"])
        expect(page.locator(f"#{name}")).to_contain_text(said)
        expect(page.locator("#progress")).to_contain_text("1 text in")
        expect(page.locator("#count")).to_have_text("1 text")
        assert "1 texts" not in page.locator("main").inner_text()


@pytest.mark.parametrize("count", [3, 60])
def test_of_equal_texts_each_view_says_something_sensible(page: Page, count: int) -> None:
    paste(page, ["a dog runs"] * count)
    expect(page.locator("#cell")).to_contain_text("To the model these texts are all alike")
    view(page, "depth")
    expect(page.locator("#cost dd").first).to_have_text("1.0000")
    view(page, "map")
    expect(page.locator("#variance")).to_contain_text("To the model these texts are all alike")
    expect(page.locator("#scatter circle")).to_have_count(count)
    assert "NaN" not in page.locator("main").inner_text()


def test_what_rounds_to_zero_has_no_sign(page: Page) -> None:
    shown = page.evaluate("""async () => {
      const { decimals } = await import("/static/dom.js");
      return [decimals(-0.0004, 3), decimals(-0.0005001, 3), decimals(-0, 2), decimals(0.001, 2)];
    }""")
    assert shown == ["0.000", "\N{MINUS SIGN}0.001", "0.00", "0.00"]


def test_tokens_are_drawn_and_texts_that_are_mostly_unknown_are_warned_of(page: Page) -> None:
    expect(page.locator("#unknown")).to_be_hidden()
    paste(page, ["a dog runs", "\N{SLICE OF PIZZA}", "\N{AUTOMOBILE}", "a dog \N{AUTOMOBILE} runs"])
    expect(page.locator("#unknown")).to_contain_text("does not know half or more of 2 texts (2, 3)")
    view(page, "tokens")
    lines = page.locator("#token-list li")
    expect(lines.nth(0).locator("code")).to_have_text(["a", "dog", "runs"])
    expect(lines.nth(0).locator("code.unknown")).to_have_count(0)
    for at in (1, 2):
        expect(lines.nth(at).locator("code.unknown")).to_have_count(1)
        expect(lines.nth(at).locator("code.unknown")).to_contain_text("unknown")
    expect(page.locator("#tokens-summary")).to_contain_text("3 of them unknown")
    paste(page, TEXTS)
    expect(page.locator("#unknown")).to_be_hidden()


def test_a_search_for_what_is_unknown_is_warned_of(page: Page) -> None:
    paste(page, TEXTS)
    view(page, "search")
    note = page.locator("#search .query-note")
    for query, unknown in (("\N{AUTOMOBILE}", True), ("a dog", False)):
        page.fill("#query", query)
        expect(page.locator("#hits")).to_have_attribute("data-query", query)
        expect(note).to_be_visible(visible=unknown)
    page.fill("#query", "\N{AUTOMOBILE}")
    view(page, "map")
    expect(page.locator("#map .query-note")).to_be_visible()


def test_live_asks_while_it_is_looked_at_only(browser: Browser, server: ServerProcess) -> None:
    with clean_page(browser, server.url) as page:
        asked = []
        page.on("request", lambda one: asked.append(one.url) if "/metrics" in one.url else None)
        page.clock.install()
        unlock(page)
        view(page, "live")
        for _ in range(3):
            with page.expect_response("**/metrics"):
                page.clock.run_for(2_100)
        view(page, "cosines")
        page.clock.run_for(2_100)  # the request that was on its way
        count = len(asked)
        page.clock.run_for(60_000)
        assert len(asked) == count
        with page.expect_response("**/metrics"):
            view(page, "live")


def test_live_gives_each_route_a_colour_of_its_own(page: Page) -> None:
    view(page, "live")
    routes = page.locator("#chart-rate .u-series .u-label")
    expect(routes.filter(has_text=re.compile("^/embed$"))).to_have_count(1)
    expect(routes.filter(has_text=re.compile("^/decode$"))).to_have_count(1)
    read = "marks => marks.map((mark) => getComputedStyle(mark).borderColor)"
    colours = page.locator("#chart-rate .u-series .u-marker").evaluate_all(read)
    assert len(colours) == len(set(colours)) > 3
    listed = page.locator("#live-route option").all_inner_texts()
    assert len(listed) == len(set(listed)) == len(colours)


def test_a_phone_has_results_in_sight_and_no_small_letters(
    browser: Browser, server: ServerProcess
) -> None:
    small = """() => [...document.querySelectorAll("body *")]
      .filter((node) => node.checkVisibility())
      .filter((node) => [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim()))
      .filter((node) => parseFloat(getComputedStyle(node).fontSize) < 11)
      .map((node) => node.outerHTML.slice(0, 90))"""
    with clean_page(browser, server.url, viewport={"width": 390, "height": 844}) as page:
        unlock(page)
        box = page.locator("#heatmap").bounding_box()
        assert box is not None
        assert box["y"] + 100 < 844
        for name in VIEWS:
            view(page, name)
            if name == "map":
                expect(page.locator("#labels text").first).to_be_visible()
                page.evaluate("scrollTo(0, 0)")
                box = page.locator("#scatter").bounding_box()
                assert box is not None
                assert box["y"] + 100 < 844
            assert page.evaluate(small) == [], name
        page.goto("/docs")
        assert page.evaluate(small) == []
