"""The map of the playground: groups, neighbours, search, zoom, keyboard, labels; the heat map."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.browser import WAIT_MILLISECONDS, clean_page, with_chromium
from tests.support.playground import TEXTS, paste, unlock, view
from tests.support.server_process import ServerProcess

pytestmark = with_chromium

MANY = [
    f"{who} {what}"
    for who in ("the dog", "a woman", "the train", "two cats", "the river")
    for what in ("sings", "runs at night", "is red", "reads books", "plays the guitar")
]


def mapped(page: Page, texts: list[str], plane: str = "neighbours") -> Locator:
    """The dots of a map of the texts."""
    paste(page, texts)
    view(page, "map")
    drawn_as(page, plane, len(texts))
    dots = page.locator("#scatter circle")
    expect(dots).to_have_count(len(texts))
    return dots


def drawn_as(page: Page, plane: str, count: int) -> None:
    expect(page.locator("#scatter")).to_have_attribute("data-plane", f"{plane} of {count}")


def places(page: Page) -> list[tuple[float, float]]:
    read = "dots => dots.map((dot) => [dot.cx.baseVal.value, dot.cy.baseVal.value])"
    found: list[tuple[float, float]] = page.locator("#scatter circle").evaluate_all(read)
    return found


def cosines(server: ServerProcess, texts: list[str]) -> Any:
    rows = np.array(server.client.post("/embed", json={"inputs": texts}).json())
    return rows @ rows.T


def positions(lines: Locator) -> list[int]:
    return [int(line.get_attribute("data-position") or "") for line in lines.all()]


def test_a_click_gives_the_nearest_texts_and_joins_them(page: Page, server: ServerProcess) -> None:
    dots = mapped(page, MANY)
    dots.nth(7).dispatch_event("click")  # another dot may lie on it
    expect(dots.nth(7)).to_have_attribute("aria-pressed", "true")
    expected = [int(one) for one in np.argsort(-cosines(server, MANY)[7], kind="stable")[1:6]]
    assert positions(page.locator("#point li")) == expected
    expect(page.locator("#lines line")).to_have_count(5)
    dots.nth(7).dispatch_event("click")
    page.locator("#scatter").dispatch_event("pointerleave")
    expect(page.locator("#lines line")).to_have_count(0)


def test_a_search_lights_the_texts_that_the_api_ranks_first(
    page: Page, server: ServerProcess
) -> None:
    mapped(page, MANY)
    page.fill("#map-query", "cats read")
    expect(page.locator("#scatter circle.hit")).to_have_count(10)
    inputs = {"queries": ["cats read"], "documents": MANY}
    (ranked,) = server.client.post("/similarity", json={"inputs": inputs}).json()
    lit = positions(page.locator("#scatter circle.hit"))
    assert set(lit) == {one["index"] for one in ranked[:10]}
    view(page, "search")
    expect(page.locator("#query")).to_have_value("cats read")
    expect(page.locator("#hits li")).to_have_count(20)
    page.fill("#query", "")
    view(page, "map")
    expect(page.locator("#scatter circle.hit")).to_have_count(0)


def test_both_planes_are_made_in_a_worker(page: Page) -> None:
    mapped(page, MANY)
    assert [worker.url.rpartition("/")[2] for worker in page.workers] == ["map-worker.js"]
    before = places(page)
    page.select_option("#plane", "components")
    drawn_as(page, "components", len(MANY))
    expect(page.locator("#variance")).to_contain_text("% of the variance")
    assert places(page) != before


def test_a_thousand_texts_have_a_map(page: Page) -> None:
    mapped(page, [f"{text}, number {number}" for number in range(40) for text in MANY])


def until_moved(page: Page, by: Callable[[Any], Any]) -> None:
    """Wait until the dots are where ``by`` says; what a mouse does is drawn a frame later."""
    for _ in range(WAIT_MILLISECONDS // 50):
        if by(np.array(places(page))):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"the dots are at {places(page)[:3]} ...")


def test_the_map_zooms_and_is_dragged(page: Page) -> None:
    mapped(page, MANY)
    whole = np.array(places(page))
    page.click("#zoom-in")
    until_moved(page, lambda now: np.allclose(np.ptp(now, axis=0), 1.5 * np.ptp(whole, axis=0)))
    near = np.array(places(page))
    page.locator("#scatter").scroll_into_view_if_needed()
    box = page.locator("#scatter").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 8
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 30, y + 20, steps=4)
    page.mouse.up()
    until_moved(page, lambda now: np.allclose(now - near, [30, 20], atol=1))
    assert page.locator('#scatter [aria-pressed="true"]').count() == 0, "a drag is no click"
    page.mouse.wheel(0, -300)
    until_moved(page, lambda now: np.all(np.ptp(now, axis=0) > 1.2 * np.ptp(near, axis=0)))
    page.click("#zoom-whole")
    until_moved(page, lambda now: np.allclose(now, whole, atol=1e-3))


def test_every_dot_is_reached_by_keyboard(page: Page) -> None:
    dots = mapped(page, MANY)
    assert page.locator('#scatter [tabindex="0"]').count() == 1
    dots.first.focus()
    expect(page.locator("#point p")).to_have_text(MANY[0])
    seen = {0}
    for _ in range(4):
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
            for _step in range(len(MANY)):
                page.keyboard.press(key)
                focused = page.locator("#scatter circle:focus").get_attribute("data-position")
                seen.add(int(focused or ""))
    assert len(seen) > 4
    page.keyboard.press("Enter")
    expect(page.locator('#scatter [aria-pressed="true"]')).to_have_count(1)
    before = places(page)
    page.keyboard.press("+")
    assert places(page) != before
    page.keyboard.press("0")
    page.keyboard.press("Escape")
    expect(page.locator('#scatter [aria-pressed="true"]')).to_have_count(0)


@pytest.mark.parametrize("width", [1280, 390])
def test_labels_do_not_cover_each_other(
    browser: Browser, server: ServerProcess, width: int
) -> None:
    viewport: Any = {"width": width, "height": 844}
    with clean_page(browser, server.url, viewport=viewport) as page:
        unlock(page)
        for texts in (TEXTS, MANY, MANY * 4):
            mapped(page, texts, "components" if len(texts) < 20 else "neighbours")
            boxes = page.locator("#labels text").evaluate_all(
                "labels => labels.map((label) => { const box = label.getBBox();"
                " return [box.x, box.y, box.x + box.width, box.y + box.height]; })"
            )
            assert boxes
            most = page.locator("#scatter").evaluate("map => map.clientWidth") + 1
            for at, (left, top, right, bottom) in enumerate(boxes):
                assert -1 <= left <= right <= most
                assert all(
                    right <= other[0] or left >= other[2] or bottom <= other[1] or top >= other[3]
                    for other in boxes[:at]
                ), (boxes[at], boxes[:at])


def test_groups_are_those_of_the_vectors_and_have_their_words(page: Page) -> None:
    """Three directions with noise, of which the text says which it is."""
    owners, words, order = page.evaluate("""async () => {
      const { clustersOf, wordsOf, seeded } = await import("/static/clusters.js");
      const { dot } = await import("/static/vectors.js");
      const random = seeded(7);
      const names = ["guitar", "market", "rain"];
      const topics = names.map(() => Float32Array.from({ length: 16 }, () => random() - 0.5));
      const vectors = Array.from({ length: 90 }, (_, i) => {
        const noisy = topics[i % 3].map((value) => value + 0.2 * (random() - 0.5));
        const length = Math.sqrt(dot(noisy, noisy));
        return noisy.map((value) => value / length);
      });
      const cosines = Float32Array.from({ length: 8100 }, (_, i) =>
        dot(vectors[Math.floor(i / 90)], vectors[i % 90]));
      const { owners, count, order } = clustersOf(vectors, cosines);
      const texts = vectors.map((_, i) => `the ${names[i % 3]} is number ${i}`);
      return [owners, wordsOf(texts, owners, count), order];
    }""")
    assert len(words) == 3
    for at, topic in enumerate(("guitar", "market", "rain")):
        assert len({owners[position] for position in range(at, 90, 3)}) == 1
        assert words[owners[at]].split(", ")[0] == topic
    assert sorted(order) == list(range(90))
    assert sum(owners[one] != owners[two] for one, two in zip(order, order[1:], strict=False)) == 2


def test_from_fifty_texts_on_the_heat_map_is_in_the_order_of_groups(page: Page) -> None:
    """Two sentences in turns: the first cells of a row are of the one, the others of the other."""
    paste(page, ["a dog runs", "the train is red"] * 25)
    expect(page.locator("#ordered")).to_contain_text("order of the map's groups")
    page.focus("#heatmap")
    seen = []
    for _ in range(49):
        page.keyboard.press("ArrowRight")
        seen.append(page.locator("#cell p").last.inner_text().split(" ", 1)[1].strip())
    assert len(set(seen[:24])) == 1
    assert len(set(seen[24:])) == 1
    assert seen[0] != seen[-1]
    paste(page, TEXTS)
    expect(page.locator("#ordered")).to_have_text("")


def test_the_dots_have_the_colours_that_the_list_of_groups_has(page: Page) -> None:
    """The example's texts, of the default model's words."""
    mapped(page, MANY)
    groups = page.locator("#groups li")
    kinds = set(
        page.locator("#scatter circle").evaluate_all("dots => dots.map((dot) => dot.classList[0])")
    )
    listed = groups.locator("i").evaluate_all("marks => marks.map((mark) => mark.classList[1])")
    assert kinds == (set(listed) or {"group-0"})
    sizes = [int(text.rpartition("· ")[2]) for text in groups.all_inner_texts()]
    assert not sizes or sum(sizes) == len(MANY)
