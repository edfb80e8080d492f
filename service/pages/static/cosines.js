// The view of cosines: a heat map of all pairs, and the closest and farthest ones.

import { byId, decimals, element, remark, shorten, themeColour } from "./dom.js";
import { extremePairs } from "./vectors.js";

const PAIRS = 6;
const NUMBERED_CELL = 37; // CSS pixels from which a cell has its number in it, in 11 pixels or more
const ORDERED_FROM = 50; // texts from which the heat map is in the order of their groups
const ALIKE = 5e-5; // a difference of cosines that no number here shows
const SIDE = 496; // CSS pixels at most

let drawn = null; // { texts, cosines, n, low, high, order, places }, or nothing yet
let selected = null; // { row, column } of texts
let shows = 0; // begun so far; only the latest draws

export async function showCosines({ texts, cosines, analysis }) {
  const run = ++shows;
  const n = texts.length;
  const order = n < ORDERED_FROM ? [...texts.keys()] : (await analysis.clusters).order;
  if (run !== shows) return;
  const [low, high] = rangeOf(cosines, n);
  const places = new Array(n);
  order.forEach((position, place) => { places[position] = place; });
  drawn = { texts, cosines, n, low, high, order, places };
  selected = null;
  byId("scale").hidden = n < 2;
  byId("ordered").textContent = n < ORDERED_FROM ? "" : "In the order of the map's groups.";
  byId("cell").replaceChildren(n < 2 ? "One text has no cosine with another. Add a second line."
    : high - low < ALIKE ? `To the model these texts are all alike: every cosine is ${decimals(high, 4)}.`
      : "Point at the heat map, or focus it and use the arrow keys.");
  byId("heatmap").setAttribute("aria-label", `Heat map of the cosines of ${n} texts. Arrow keys move through it.`);
  byId("scale-low").textContent = decimals(drawn.low, 2);
  byId("scale-high").textContent = decimals(drawn.high, 2);
  draw();
  listPairs("closest", extremePairs(cosines, n, PAIRS));
  listPairs("farthest", extremePairs(cosines, n, PAIRS, { lowest: true }));
}

/** The lowest and the highest cosine of different texts. */
function rangeOf(cosines, n) {
  if (n < 2) return [0, 1];
  let low = 1, high = -1;
  for (let i = 0; i < cosines.length; i++) {
    if (i % (n + 1)) {
      low = Math.min(low, cosines[i]);
      high = Math.max(high, cosines[i]);
    }
  }
  return [low, high];
}

export function listenToHeatMap() {
  const canvas = byId("heatmap");
  canvas.addEventListener("pointermove", (event) => {
    if (!drawn) return;
    const box = canvas.getBoundingClientRect();
    const place = (offset, side) => drawn.order[Math.min(drawn.n - 1, Math.max(0, Math.floor((offset / side) * drawn.n)))];
    select(place(event.clientY - box.top, box.height), place(event.clientX - box.left, box.width));
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !drawn) return;
    event.preventDefault();
    const { row, column } = selected ?? { row: drawn.order[0], column: drawn.order[0] };
    const moved = (position, by) => drawn.order[Math.min(drawn.n - 1, Math.max(0, drawn.places[position] + by))];
    select(moved(row, step[0]), moved(column, step[1]));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(draw).observe(canvas.parentElement);
}

function select(row, column) {
  if (selected && selected.row === row && selected.column === column) return;
  selected = { row, column };
  draw();
  const { texts, cosines, n } = drawn;
  byId("cell").replaceChildren(
    element("strong", {}, decimals(cosines[row * n + column], 4)),
    element("p", {}, `${row + 1}  ${shorten(texts[row])}`),
    element("p", {}, `${column + 1}  ${shorten(texts[column])}`),
  );
}

function draw() {
  const canvas = byId("heatmap");
  const width = canvas.parentElement.clientWidth;
  if (!drawn || !width) return; // the view is hidden
  const { n, cosines, order, places } = drawn;
  const side = Math.min(SIDE, width);
  const ratio = devicePixelRatio || 1;
  canvas.style.width = canvas.style.height = `${side}px`;
  canvas.width = canvas.height = Math.round(side * ratio);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(cells(), 0, 0, canvas.width, canvas.height);
  const cell = canvas.width / n;
  if (side / n >= NUMBERED_CELL) {
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `${Math.round(Math.min(cell * 0.3, 13 * ratio))}px system-ui, sans-serif`;
    for (let i = 0; i < n * n; i++) {
      const [row, column] = [Math.floor(i / n), i % n];
      const cosine = cosines[order[row] * n + order[column]];
      context.fillStyle = themeColour(share(cosine) > 0.62 ? "--heat-ink-high" : "--heat-ink-low");
      const label = row === column ? String(order[row] + 1) : decimals(cosine, 2);
      context.fillText(label, (column + 0.5) * cell, (row + 0.5) * cell);
    }
  }
  if (selected) {
    context.strokeStyle = themeColour("--text");
    context.lineWidth = Math.max(2, ratio * 1.5);
    context.strokeRect(places[selected.column] * cell, places[selected.row] * cell, Math.max(cell, 3), Math.max(cell, 3));
  }
  drawScale();
}

/** A canvas with a pixel for each cell. */
function cells() {
  const { n, cosines, order } = drawn;
  const small = element("canvas", { width: n, height: n });
  const image = new ImageData(n, n);
  const [low, high] = [rgb("--heat-low"), rgb("--heat-high")];
  for (let i = 0; i < n * n; i++) {
    const part = share(cosines[order[Math.floor(i / n)] * n + order[i % n]]);
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = low[c] + part * (high[c] - low[c]);
    image.data[4 * i + 3] = 255;
  }
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
}

function drawScale() {
  const canvas = byId("scale-bar");
  const context = canvas.getContext("2d");
  const gradient = context.createLinearGradient(0, 0, canvas.width, 0);
  gradient.addColorStop(0, themeColour("--heat-low"));
  gradient.addColorStop(1, themeColour("--heat-high"));
  context.fillStyle = gradient;
  context.fillRect(0, 0, canvas.width, canvas.height);
}

/** Where a cosine lies between the lowest and the highest of different texts, in [0, 1]. */
function share(cosine) {
  const { low, high } = drawn;
  return high - low < ALIKE ? 0 : Math.min(1, Math.max(0, (cosine - low) / (high - low)));
}

function rgb(name) {
  const hex = themeColour(name);
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

function listPairs(id, pairs) {
  const { texts } = drawn;
  if (!pairs.length) return byId(id).replaceChildren(remark("One text has no pairs."));
  return byId(id).replaceChildren(...pairs.map(({ a, b, cosine }) => {
    const button = element("button", { type: "button", onclick: () => select(a, b) },
      element("strong", {}, decimals(cosine)),
      element("span", {}, shorten(texts[a], 60)),
      element("span", {}, shorten(texts[b], 60)));
    return element("li", {}, button);
  }));
}
