// The view of the map: the texts on two principal components, with their words on hover.

import { byId, element, shorten, svgElement } from "./dom.js";
import { principalComponents } from "./vectors.js";

const [WIDTH, HEIGHT, MARGIN] = [720, 480, 28];
const MOST_LABELLED = 40;

export function showMap({ texts, vectors }) {
  const scatter = byId("scatter");
  if (texts.length < 3) {
    byId("variance").textContent = "at least three texts are needed.";
    scatter.replaceChildren();
    return;
  }
  const { points, explained } = principalComponents(vectors);
  byId("variance").textContent = `they hold ${Math.round(100 * explained)} % of the variance.`;
  const place = [scale(points.map((point) => point[0]), WIDTH), scale(points.map((point) => point[1]), HEIGHT)];
  scatter.setAttribute("aria-label", `Map of ${texts.length} texts`);
  scatter.replaceChildren(...points.map((point, position) => {
    const [x, y] = [place[0](point[0]), place[1](point[1])];
    const dot = svgElement("circle", { cx: x, cy: y, r: texts.length > 200 ? 3 : 6, "data-position": position });
    dot.addEventListener("pointerenter", () => tell(position, texts[position]));
    return dot;
  }));
  if (texts.length > MOST_LABELLED) return;
  const labelled = []; // [x, y] of the dots that have a label; one that would cover another is left out
  for (const [position, point] of points.entries()) {
    const [x, y] = [place[0](point[0]), place[1](point[1])];
    if (labelled.some((other) => Math.abs(other[1] - y) < 14 && Math.abs(other[0] - x) < 220)) continue;
    labelled.push([x, y]);
    const right = x > WIDTH * 0.6;
    const label = svgElement("text", { x: right ? x - 10 : x + 10, y: y + 4, "text-anchor": right ? "end" : "start" });
    label.textContent = shorten(texts[position], 30);
    scatter.append(label);
  }
}

function scale(values, size) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return (value) => MARGIN + ((value - low) / (high - low || 1)) * (size - 2 * MARGIN);
}

function tell(position, text) {
  byId("point").replaceChildren(element("strong", {}, String(position + 1)), element("p", {}, shorten(text, 300)));
}
