// The view of tokens: how long each text is for the model, and where one was cut.

import { callJson } from "./api.js";
import { beginning, byId, element, shorten } from "./dom.js";

// The model reads no more characters of a text than this for each token it keeps.
const CHARACTERS_PER_TOKEN = 250;

export function showTokens({ texts, tokens, truncated }, info, guarded) {
  const cut = truncated.filter(Boolean).length;
  const total = tokens.reduce((sum, count) => sum + count, 0);
  byId("tokens-summary").textContent =
    `${total.toLocaleString("en")} tokens in ${texts.length} texts, special tokens included. The model reads ` +
    `${info.max_input_length} of a text; ${cut === 1 ? "1 text was" : `${cut} texts were`} cut.`;
  byId("token-list").replaceChildren(...texts.map((text, position) => {
    const words = element("span", {}, shorten(text, truncated[position] ? 300 : 110));
    const line = element("li", {}, element("strong", {}, String(tokens[position])), words);
    if (truncated[position]) {
      const button = element("button", { type: "button" }, "cut: show where");
      button.addEventListener("click", () => guarded(() => markCut(line, text, tokens[position], info)));
      line.append(button);
    }
    return line;
  }));
}

/** Show a text with what the model did not read marked; it read so many `tokens`. */
async function markCut(line, text, tokens, info) {
  const inputs = beginning(text, CHARACTERS_PER_TOKEN * info.max_input_length);
  const [spans] = await callJson("tokenize", { inputs });
  const own = spans.filter((span) => !span.special);
  const first = own[tokens - (spans.length - own.length)];
  const prompt = info.prompts[info.default_prompt_name] ?? ""; // places count it
  const bytes = new TextEncoder().encode(prompt + inputs);
  const read = new TextDecoder().decode(first ? bytes.slice(0, first.start) : bytes).slice(prompt.length);
  const rest = text.slice(read.length);
  line.children[1].replaceChildren(shorten(read, 2000),
    element("mark", {}, shorten(rest, 300)));
  line.lastChild.replaceWith(element("em", {}, `${rest.length.toLocaleString("en")} characters were not read`));
}
