// The view of size: what fewer blocks and fewer numbers change, and what they cost.

import { callJson, embed } from "./api.js";
import { beginning, byId, decimals, element } from "./dom.js";
import { hit } from "./search.js";
import { cosineMatrix, cut, neighbours, spearman } from "./vectors.js";

const SHOWN = 8;
const RUNS = 21; // of one text, whose median and quartiles are shown
const MOST_COMPARED = 300; // texts whose order is compared; more would take seconds
const MOST_MEASURED = 2000; // characters of the text whose time is measured

let current = null; // the results at full depth
let info = null;
let byDepth = new Map(); // unit vectors at each depth
let updates = 0, measurements = 0; // begun so far; only the latest of each draws

/** The depths that can be chosen, deepest last; null stands for all blocks. */
const depths = () => [...info.depths, null];
const nameOf = (depth) => (depth ?? info.full_depth ?? "all");

export function prepareDepth(serverInfo) {
  info = serverInfo;
  const slider = byId("depth-slider");
  slider.max = slider.value = depths().length - 1;
  byId("depth-field").hidden = byId("depths").hidden = info.depths.length === 0;
  const dimensions = byId("dimensions-slider");
  Object.assign(dimensions, { min: Math.min(8, info.dim), max: info.dim, value: info.dim });
  nameSliders();
}

export function showDepth(results) {
  if (current !== results) {
    current = results;
    byDepth = new Map([[null, results.vectors]]);
    byId("depth-table").tBodies[0].replaceChildren();
    for (const id of ["neighbours-full", "neighbours-chosen", "cost"]) byId(id).replaceChildren();
    byId("anchor").replaceChildren(...results.texts.map((text, position) =>
      element("option", { value: position }, `${position + 1}  ${beginning(text, 80)}`)));
  }
  return update();
}

export function listenToDepth(guarded) {
  for (const id of ["depth-slider", "dimensions-slider"]) byId(id).addEventListener("input", nameSliders);
  for (const id of ["depth-slider", "dimensions-slider", "anchor"]) {
    byId(id).addEventListener("change", () => guarded(update));
  }
  byId("measure").addEventListener("click", () => guarded(measureAll));
}

/** The options that ask the API for what is chosen. */
export function chosenOptions() {
  const options = {};
  if (chosenDepth() !== null) options.depth = chosenDepth();
  if (chosenDimensions() < info.dim) options.dimensions = chosenDimensions();
  return options;
}

const chosenDepth = () => depths()[byId("depth-slider").value];
const chosenDimensions = () => Number(byId("dimensions-slider").value);

function nameSliders() {
  byId("depth-value").textContent = `${nameOf(chosenDepth())} of ${nameOf(null)}`;
  byId("dimensions-value").textContent = `${chosenDimensions()} of ${info.dim}`;
}

/** What is chosen now; a step that waits works with this, whatever is embedded meanwhile. */
const choice = () => ({
  results: current, known: byDepth, depth: chosenDepth(), dimensions: chosenDimensions(),
  anchor: Number(byId("anchor").value),
});

async function update() {
  const run = ++updates;
  if (!current) return;
  const alone = current.texts.length < 2;
  byId("depth-note").textContent = alone ? "One text has no neighbours. Add a second line." : "Fewer blocks and fewer numbers cost less. See what they change.";
  if (alone) return;
  const chosen = choice();
  const { results, dimensions, anchor } = chosen;
  const vectors = await vectorsAt(chosen);
  if (run !== updates) return;
  listNeighbours(results, vectors, anchor);
  const agreement = await compare(results.vectors, vectors);
  if (run !== updates) return;
  const [times] = await measure(chosen, [chosen.depth], () => run === updates);
  if (run !== updates) return;
  byId("cost").replaceChildren(
    ...tile("Spearman to the whole", decimals(agreement.correlation, 4)),
    ...tile("same nearest text", `${Math.round(100 * agreement.sameNearest)} %`),
    ...tile("one text, there and back", `${decimals(times.median, 1)} ms`, `half of ${RUNS} runs: ${times.spread} ms`),
    ...tile("bytes of a vector", `${4 * dimensions}`));
}

function listNeighbours({ texts, vectors }, shorter, anchor) {
  const [whole, chosen] = [neighbours(vectors, anchor), neighbours(shorter, anchor)];
  const placed = new Map(whole.order.map((position, place) => [position, place]));
  list("neighbours-full", texts, whole, () => "");
  list("neighbours-chosen", texts, chosen, (position, place) => moved(placed.get(position) - place));
}

async function vectorsAt({ results, known, depth, dimensions }) {
  if (!known.has(depth)) {
    const { vectors } = await embed(results.texts, { ...results.options, depth });
    known.set(depth, vectors);
  }
  return cut(known.get(depth), dimensions);
}

/** How the order of all pairs, and each text's nearest one, agree with the whole embedding. */
async function compare(full, vectors) {
  const n = Math.min(MOST_COMPARED, vectors.length);
  const [whole, chosen] = await Promise.all(
    [full, vectors].map((each) => cosineMatrix(each.slice(0, n))));
  let same = 0;
  for (let row = 0; row < n; row++) same += nearest(whole, n, row) === nearest(chosen, n, row);
  return { correlation: spearman(whole, chosen, n), sameNearest: same / n };
}

function nearest(cosines, n, row) {
  let best = row ? 0 : 1;
  for (let column = 0; column < n; column++) {
    if (column !== row && cosines[row * n + column] > cosines[row * n + best]) best = column;
  }
  return best;
}

/**
 * Milliseconds of a request with one text at each depth {median, spread: its quartiles}, while `wanted`. The depths take
 * turns, so that what else the machine does falls on all alike.
 */
async function measure({ results, anchor }, measured, wanted) {
  const inputs = beginning(results.texts[anchor], MOST_MEASURED);
  const times = measured.map(() => []);
  for (let run = 0; run < RUNS && wanted(); run++) {
    for (const [place, depth] of measured.entries()) {
      const options = depth === null ? results.options : { ...results.options, depth };
      const since = performance.now();
      await callJson("embed", { inputs, encoding: "base64", ...options });
      times[place].push(performance.now() - since);
    }
  }
  return times.map((each) => {
    each.sort((a, b) => a - b);
    const quartile = (part) => each[Math.floor((part * each.length) / 4)] ?? 0;
    return { median: quartile(2), spread: `${decimals(quartile(1), 1)} to ${decimals(quartile(3), 1)}` };
  });
}

async function measureAll() {
  const run = ++measurements;
  if (!current) return;
  const chosen = choice();
  const { results } = chosen;
  const wanted = () => run === measurements && results === current;
  const body = byId("depth-table").tBodies[0];
  body.replaceChildren();
  for (const depth of depths()) {
    const vectors = await vectorsAt({ ...chosen, depth });
    const { correlation, sameNearest } = await compare(results.vectors, vectors);
    if (!wanted()) return;
    const alone = results.texts.length < 2; // there is nothing to compare
    body.append(element("tr", {},
      element("th", { scope: "row" }, String(nameOf(depth))),
      element("td", {}, "…"), element("td", {}, "…"),
      element("td", {}, alone ? "–" : decimals(correlation, 4)),
      element("td", {}, alone ? "–" : `${Math.round(100 * sameNearest)} %`)));
  }
  const times = await measure(chosen, depths(), wanted);
  if (!wanted()) return;
  for (const [place, { median, spread }] of times.entries()) {
    const [, ms, range] = body.rows[place].cells;
    ms.textContent = decimals(median, 1);
    range.textContent = spread;
  }
}

function list(id, texts, { scores, order }, note) {
  byId(id).replaceChildren(...order.slice(0, SHOWN).map((position, place) => hit({
    score: scores[position], text: texts[position], position, note: note(position, place),
  })));
}

function moved(places) {
  if (!places) return "";
  return places > 0 ? `▲ ${places}` : `▼ ${-places}`;
}

const tile = (name, value, note = "") => [element("div", {},
  element("dt", {}, name, ...(note ? [element("br"), note] : [])), element("dd", {}, value))];
