"""The playground as its tests use it: with the key given, texts pasted, a view chosen."""

from playwright.sync_api import Page, expect

from tests.support.browser import WAIT_MILLISECONDS

KEY = "s2s_key-of-the-page"
TEXTS = [
    *("the cat sings in the city", "a dog runs", "two happy dogs read books"),
    *("the green river at night", "a woman plays the guitar", "the train is red"),
]
VIEWS = ["cosines", "search", "depth", "blocks", "tokens", "map", "live"]

# A paste as the browser tells the page of it; short texts are put in by the browser itself.
PASTE = """(text) => {
  const field = document.getElementById("texts");
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  const event = new ClipboardEvent("paste", { clipboardData, cancelable: true });
  if (field.dispatchEvent(event)) {
    field.value = text;
    field.dispatchEvent(new Event("input"));
  }
}"""

expect.set_options(timeout=WAIT_MILLISECONDS)


def unlock(page: Page) -> None:
    page.goto("/playground")
    page.fill("#key", KEY)
    page.click("#use-key")
    expect(page.locator("body")).to_have_attribute("data-embedded", "12")


def paste(page: Page, texts: list[str], *, embedded: int | None = None) -> None:
    page.evaluate("delete document.body.dataset.embedded")
    page.fill("#texts", "")
    page.evaluate(PASTE, "\n".join(texts))
    page.click("#embed")
    count = len(texts) if embedded is None else embedded
    expect(page.locator("body")).to_have_attribute("data-embedded", str(count))


def view(page: Page, name: str) -> None:
    page.click(f"#tab-{name}")
