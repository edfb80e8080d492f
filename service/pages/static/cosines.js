// The view of cosines: a heat map of all pairs, and the closest and farthest ones.

import { byId, decimals, element, shorten, themeColour } from "./dom.js";
import { extremePairs } from "./vectors.js";

const PAIRS = 6;
const NUMBERED_CELL = 31; // CSS pixels from which a cell has its number in it
const SIDE = 496; // CSS pixels at most

let drawn = null; // { texts, cosines, n, low, high }, or nothing yet
let selected = null; // { row, column }

export function showCosines({ texts, cosines }) {
  const n = texts.length;
  let low = 1, high = -1;
  for (let i = 0; i < cosines.length; i++) {
    if (i % (n + 1)) {
      low = Math.min(low, cosines[i]);
      high = Math.max(high, cosines[i]);
    }
  }
  drawn = { texts, cosines, n, low: Math.min(low, high), high };
  selected = null;
  byId("heatmap").setAttribute("aria-label", `Heat map of the cosines of ${n} texts. Arrow keys move through it.`);
  byId("scale-low").textContent = decimals(drawn.low, 2);
  byId("scale-high").textContent = decimals(drawn.high, 2);
  draw();
  listPairs("closest", extremePairs(cosines, n, PAIRS));
  listPairs("farthest", extremePairs(cosines, n, PAIRS, { lowest: true }));
}

export function listenToHeatMap() {
  const canvas = byId("heatmap");
  canvas.addEventListener("pointermove", (event) => {
    if (!drawn) return;
    const box = canvas.getBoundingClientRect();
    const place = (offset, side) => Math.min(drawn.n - 1, Math.max(0, Math.floor((offset / side) * drawn.n)));
    select(place(event.clientY - box.top, box.height), place(event.clientX - box.left, box.width));
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !drawn) return;
    event.preventDefault();
    const { row, column } = selected ?? { row: 0, column: 0 };
    const inside = (place) => Math.min(drawn.n - 1, Math.max(0, place));
    select(inside(row + step[0]), inside(column + step[1]));
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
  const { n, cosines } = drawn;
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
      context.fillStyle = themeColour(share(cosines[i]) > 0.62 ? "--heat-ink-high" : "--heat-ink-low");
      const [row, column] = [Math.floor(i / n), i % n];
      const label = row === column ? String(row + 1) : decimals(cosines[i], 2);
      context.fillText(label, (column + 0.5) * cell, (row + 0.5) * cell);
    }
  }
  if (selected) {
    context.strokeStyle = themeColour("--text");
    context.lineWidth = Math.max(2, ratio * 1.5);
    context.strokeRect(selected.column * cell, selected.row * cell, Math.max(cell, 3), Math.max(cell, 3));
  }
  drawScale();
}

/** A canvas with a pixel for each cell. */
function cells() {
  const { n, cosines } = drawn;
  const small = element("canvas", { width: n, height: n });
  const image = new ImageData(n, n);
  const [low, high] = [rgb("--heat-low"), rgb("--heat-high")];
  for (let i = 0; i < n * n; i++) {
    const part = share(cosines[i]);
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
  return Math.min(1, Math.max(0, (cosine - low) / (high - low || 1)));
}

function rgb(name) {
  const hex = themeColour(name);
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

function listPairs(id, pairs) {
  const { texts } = drawn;
  byId(id).replaceChildren(...pairs.map(({ a, b, cosine }) => {
    const button = element("button", { type: "button", onclick: () => select(a, b) },
      element("strong", {}, decimals(cosine)),
      element("span", {}, shorten(texts[a], 60)),
      element("span", {}, shorten(texts[b], 60)));
    return element("li", {}, button);
  }));
}
