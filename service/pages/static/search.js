// The view of search: the pasted texts ranked by their cosine with what is typed.

import { embed } from "./api.js";
import { byId, decimals, element, shorten } from "./dom.js";
import { mostlyUnknown } from "./tokens.js";
import { dot, ranking } from "./vectors.js";

const SHOWN = 20;
const PAUSE_MILLISECONDS = 120; // after a key, before the query is sent

let current = null; // { texts, vectors, options }
let running = new AbortController();
let waiting = 0;
let told = () => {}; // who else is told the scores

export function showSearch(results) {
  current = results;
  search(() => {});
}

/** `onFailure` is told of a query that the server did not answer, `onScores` of each text's cosine or null. */
export function listenToSearch(onFailure, onScores) {
  told = onScores;
  for (const [id, other] of [["query", "map-query"], ["map-query", "query"]]) {
    byId(id).addEventListener("input", () => {
      byId(other).value = byId(id).value;
      clearTimeout(waiting);
      waiting = setTimeout(() => search(onFailure), PAUSE_MILLISECONDS);
    });
  }
  byId("prompt").addEventListener("change", () => search(onFailure));
}

export const searchedFor = () => byId("query").value.trim();

/** The parameters of /similarity that name the query's prompt and that of the texts, the default. */
export function chosenPrompts(info) {
  const prompt = byId("prompt").value;
  return prompt ? { prompt_name: prompt, documents_prompt_name: info.default_prompt_name ?? "" } : {};
}

async function search(onFailure) {
  running.abort();
  running = new AbortController();
  const query = searchedFor();
  if (!current || !query) {
    byId("hits").replaceChildren();
    noteOnQuery(false);
    told(null);
    return;
  }
  const prompt = byId("prompt").value;
  const options = prompt ? { ...current.options, prompt_name: prompt } : current.options;
  try {
    const asked = await embed([query], options, running);
    const scores = current.vectors.map((vector) => dot(vector, asked.vectors[0]));
    noteOnQuery(mostlyUnknown(asked).length > 0);
    list(query, scores);
    told(scores);
  } catch (error) {
    if (error.name !== "AbortError") onFailure(error);
  }
}

function noteOnQuery(isUnknown) {
  for (const note of document.querySelectorAll(".query-note")) note.hidden = !isUnknown;
}

function list(query, scores) {
  byId("hits").dataset.query = query;
  byId("hits").replaceChildren(...ranking(scores).slice(0, SHOWN).map((position) => hit({
    score: scores[position], text: current.texts[position], position,
  })));
}

/** A line of a ranking: the score as a number and a bar, the text, and a note behind it. */
export function hit({ score, text, position, note = "" }) {
  const bar = element("meter", { min: 0, max: 1, value: Math.max(0, score), ariaHidden: "true" });
  const line = element("li", {}, element("strong", {}, decimals(score)), bar,
    element("span", { title: shorten(text, 600) }, shorten(text)), element("em", {}, note));
  line.dataset.position = position;
  return line;
}
