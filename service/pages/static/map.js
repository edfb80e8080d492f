// The view of the map: the texts on a plane, in colours of their groups, with neighbours, search hits and zoom.

import { byId, element, shorten, svgElement } from "./dom.js";
import { wordsOf } from "./clusters.js";
import { labelsOf } from "./labels.js";
import { hit } from "./search.js";
import { listenToMoves, toPlace, wholeView, zoomed } from "./moves.js";
import { neighbours, ranking } from "./vectors.js";

const FEWEST_TEXTS = 3;
const NEIGHBOURS = 5; // that are named and joined by lines
const LIT = 10; // texts that a search lights
const KEPT_FROM = 20; // texts from which neighbours are kept by default
const [LOW, HIGH] = [280, 544]; // CSS pixels of height

let drawn = null; // { results, points, owners, words, size } or nothing yet
let view = wholeView();
let pinned = null, pointed = null, focused = 0; // positions of texts
let hits = null; // positions that a search lights, or none
let shows = 0; // begun so far; only the latest draws

export async function showMap(results) {
  const run = ++shows;
  const n = results.texts.length;
  byId("scatter").setAttribute("aria-label", `Map of ${n} texts`);
  if (drawn?.results !== results) {
    Object.assign(drawn ?? {}, { results: null });
    [pinned, pointed, focused, view] = [null, null, 0, wholeView()];
    byId("scatter").replaceChildren();
    byId("groups").replaceChildren();
    tellNothing();
  }
  if (n < FEWEST_TEXTS) return say("A map needs at least three texts.");
  const chosen = byId("plane").value || (n < KEPT_FROM ? "components" : "neighbours");
  say("The map is being made …");
  const [{ points, explained, spread }, { owners, count }] = await Promise.all([results.analysis[chosen], results.analysis.clusters]);
  if (run !== shows) return undefined;
  say(spread === 0 ? "To the model these texts are all alike: their dots lie on one another."
    : explained === undefined ? "Near texts stay near (UMAP); distances between groups tell little. Trust the cosines."
      : `Two principal components, with ${Math.round(100 * explained)} % of the variance. Trust the cosines, not the distances here.`);
  drawn = { results, points, owners, words: wordsOf(results.texts, owners, count) };
  listGroups(count);
  makeDots();
  draw();
  byId("scatter").dataset.plane = `${chosen} of ${n}`;
  return undefined;
}

export function listenToMap(guarded) {
  const scatter = byId("scatter");
  byId("plane").addEventListener("change", () => guarded(async () => drawn?.results && showMap(drawn.results)));
  scatter.addEventListener("pointerover", ({ target }) => point(positionOf(target)));
  scatter.addEventListener("pointerleave", () => point(null));
  scatter.addEventListener("focusin", ({ target }) => point(positionOf(target)));
  scatter.addEventListener("click", ({ target }) => pin(positionOf(target)));
  scatter.addEventListener("keydown", onKey);
  const zoomAtCentre = (factor) => () => move(zoomed(view, factor, drawn.width / 2, drawn.height / 2));
  byId("zoom-in").addEventListener("click", zoomAtCentre(1.5));
  byId("zoom-out").addEventListener("click", zoomAtCentre(1 / 1.5));
  byId("zoom-whole").addEventListener("click", () => move(wholeView()));
  listenToMoves(scatter, () => view, move);
  new ResizeObserver(draw).observe(scatter);
}

/** Light the texts that are nearest to what is searched for; none without scores. */
export function lightHits(scores) {
  hits = scores && new Set(ranking(scores).slice(0, LIT));
  draw();
}

const say = (sentence) => { byId("variance").textContent = sentence; };
const positionOf = (target) => (target.dataset?.position === undefined ? null : Number(target.dataset.position));

function move(next) {
  if (!drawn?.results) return;
  view = next;
  draw();
}

function listGroups(count) {
  const { owners, words } = drawn;
  byId("groups").replaceChildren(...(count < 2 ? [] : words.map((name, group) => element("li", {},
    element("i", { className: `dot group-${group}`, ariaHidden: "true" }),
    `${name || `group ${group + 1}`} · ${owners.filter((one) => one === group).length}`))));
}

function makeDots() {
  const { results, owners, words } = drawn;
  byId("scatter").replaceChildren(svgElement("g", { id: "lines" }),
    ...results.texts.map((text, position) => svgElement("circle", {
      class: `group-${owners[position]}`, "data-position": position, role: "button", tabindex: position === focused ? 0 : -1,
      "aria-label": `${position + 1} ${shorten(text)}${words[owners[position]] ? `, among ${words[owners[position]]}` : ""}`,
    })), svgElement("g", { id: "labels", "aria-hidden": "true" }));
}

/** Put everything where the view has it. */
function draw() {
  const scatter = byId("scatter");
  const width = scatter.clientWidth;
  if (!drawn?.results || !width) return; // the view is hidden
  const height = Math.round(Math.min(HIGH, Math.max(LOW, 0.66 * width)));
  Object.assign(drawn, { width, height });
  scatter.setAttribute("viewBox", `0 0 ${width} ${height}`);
  scatter.style.height = `${height}px`;
  drawn.places = toPlace(drawn.points, view, width, height);
  const marked = pointed ?? pinned;
  const near = marked === null ? [] : neighbours(drawn.results.vectors, marked).order.slice(0, NEIGHBOURS);
  const radius = drawn.points.length > 200 ? 4 : 6;
  scatter.classList.toggle("lit", hits !== null);
  for (const dot of scatter.querySelectorAll("circle")) {
    const position = positionOf(dot);
    const [x, y] = drawn.places[position];
    const large = position === marked || near.includes(position) || hits?.has(position);
    for (const [name, value] of Object.entries({ cx: x, cy: y, r: large ? radius + 2 : radius })) dot.setAttribute(name, value);
    dot.classList.toggle("hit", hits?.has(position) ?? false);
    dot.classList.toggle("marked", position === marked);
    dot.setAttribute("aria-pressed", String(position === pinned));
  }
  byId("lines").replaceChildren(...near.map((position) => svgElement("line", {
    x1: drawn.places[marked][0], y1: drawn.places[marked][1], x2: drawn.places[position][0], y2: drawn.places[position][1],
  })));
  byId("labels").replaceChildren(...labelsOf(drawn, { first: [...(marked === null ? [] : [marked]), ...(hits ?? [])] }).map(
    ({ x, y, text, group }) => {
      const label = svgElement("text", { x, y, class: group === undefined ? "" : "group" });
      label.textContent = text;
      return label;
    }));
}

function point(position) {
  if (position === pointed) return;
  pointed = position;
  if (position !== null || pinned === null) tell(position);
  else tell(pinned);
  draw();
}

function pin(position) {
  pinned = position === pinned ? null : position;
  if (position !== null) focus(position);
  tell(pinned ?? pointed);
  draw();
}

const tellNothing = () => byId("point").replaceChildren("Point at a dot to read its text, click it to keep its neighbours. With the keyboard: arrows, Enter, + − 0.");

function tell(position) {
  if (position === null || !drawn?.results) return tellNothing();
  const { results: { texts, vectors } } = drawn;
  const { scores, order } = neighbours(vectors, position);
  return byId("point").replaceChildren(
    element("strong", {}, String(position + 1)), element("p", {}, shorten(texts[position], 300)),
    element("h3", {}, "Nearest"),
    element("ol", { className: "hits" }, ...order.slice(0, NEIGHBOURS).map((other) =>
      hit({ score: scores[other], text: texts[other], position: other }))));
}

function focus(position) {
  const dots = byId("scatter").querySelectorAll("circle");
  dots[focused]?.setAttribute("tabindex", -1);
  focused = position;
  dots[position].setAttribute("tabindex", 0);
  dots[position].focus();
}

const DIRECTIONS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

function onKey(event) {
  const steps = { "+": "zoom-in", "-": "zoom-out", 0: "zoom-whole" };
  if (steps[event.key]) byId(steps[event.key]).click();
  else if (event.key === "Enter" || event.key === " ") pin(positionOf(event.target));
  else if (event.key === "Escape") pin(pinned);
  else if (DIRECTIONS[event.key]) {
    const next = nextIn(DIRECTIONS[event.key]);
    if (next !== null) focus(next);
  } else return;
  event.preventDefault();
}

/** The nearest dot that lies in a direction from the one with the focus, or none. */
function nextIn([right, down]) {
  const [x, y] = drawn.places[focused];
  let best = null, least = Infinity;
  drawn.places.forEach(([otherX, otherY], position) => {
    const [along, aside] = [(otherX - x) * right + (otherY - y) * down, Math.abs((otherX - x) * down) + Math.abs((otherY - y) * right)];
    const cost = along + 2 * aside;
    if (position !== focused && (along > 0.5 || (along > -0.5 && aside < 0.5 && position > focused)) && cost < least) [best, least] = [position, cost];
  });
  return best;
}
