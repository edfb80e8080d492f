// The view of tokens: what each text is for the model, what it does not know, and where a text was cut.

import { callJson } from "./api.js";
import { beginning, byId, counted, element, shorten } from "./dom.js";

// The model reads no more characters of a text than this for each token it keeps.
const CHARACTERS_PER_TOKEN = 250;
const MOST_DRAWN = 100; // texts whose tokens are drawn
const DRAWN_CHARACTERS = 600; // of such a text
const DRAWN_TOKENS = 80;

let around = 0; // special tokens that stand around a text
let shows = 0; // begun so far; only the latest draws

/** The positions of texts of which half or more is unknown to the model. */
export const mostlyUnknown = ({ tokens, unknown }) =>
  [...tokens.keys()].filter((position) => unknown[position] > 0 && 2 * unknown[position] >= tokens[position] - around);

/** Ask how many special tokens stand around a text. */
export async function countAround() {
  const [spans] = await callJson("tokenize", { inputs: "a" });
  around = spans.filter((span) => span.special).length;
}

export async function showTokens({ texts, tokens, unknown, truncated }, info, guarded) {
  const run = ++shows;
  const total = (counts) => counts.reduce((sum, count) => sum + count, 0);
  const cut = truncated.filter(Boolean).length;
  byId("tokens-summary").textContent =
    `${counted(total(tokens), "token")} in ${counted(texts.length, "text")}, special tokens included; ` +
    `${total(unknown).toLocaleString("en")} of them unknown. The model reads ${info.max_input_length} of a text; ` +
    `${cut === 1 ? "1 text was" : `${cut} texts were`} cut.`;
  const lines = texts.map((text, position) => {
    const line = element("li", {}, element("strong", {}, String(tokens[position])),
      element("span", {}, shorten(text, truncated[position] ? 300 : 110)));
    if (truncated[position]) {
      const button = element("button", { type: "button" }, "cut: show where");
      button.addEventListener("click", () => guarded(() => markCut(line, button, text, tokens[position], info)));
      line.append(button);
    }
    return line;
  });
  byId("token-list").replaceChildren(...lines);
  const drawn = texts.slice(0, Math.min(MOST_DRAWN, info.max_client_batch_size)).map((text) => beginning(text, DRAWN_CHARACTERS));
  const answer = await callJson("tokenize", { inputs: drawn });
  if (run !== shows) return;
  for (const [position, spans] of answer.entries()) lines[position].append(pieces(spans, info.unknown_id));
  const left = texts.length - drawn.length;
  if (left > 0) byId("token-list").append(element("li", { className: "soft" }, `The tokens of the first ${drawn.length} texts are drawn.`));
}

/** The tokens of a text in a row; those that the model does not know are marked. */
function pieces(spans, unknownId) {
  const own = spans.filter((span) => !span.special);
  return element("div", { className: "pieces" }, ...own.slice(0, DRAWN_TOKENS).map((span) => {
    const isUnknown = span.id === unknownId;
    return element("code", { className: isUnknown ? "unknown" : "", title: isUnknown ? "unknown to the model" : "" },
      isUnknown ? `${span.text} unknown` : span.text);
  }), own.length > DRAWN_TOKENS ? "…" : "");
}

/** Show a text with what the model did not read marked; it read so many `tokens`. */
async function markCut(line, button, text, tokens, info) {
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
  button.replaceWith(element("em", {}, `${counted(rest.length, "character")} ${rest.length === 1 ? "was" : "were"} not read`));
}
