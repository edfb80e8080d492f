// The view of the running server: rates, latencies, queue and batches over the last five minutes it was looked at.

/* global uPlot */

import { call } from "./api.js";
import { byId, decimals, element, themeColour } from "./dom.js";
import { gained, parseMetrics, quantile, valueOf } from "./metrics.js";

const PERIOD_SECONDS = 2;
const KEPT = 300 / PERIOD_SECONDS;
const WINDOW = 5; // scrapes that a latency is taken over
const HEIGHT = 170;
const DURATION = "s2sent_request_duration_seconds";
const UNSHOWN = new Set(["/metrics", "/health", "/ready", "other"]);
const COLOURS = 10; // of the style sheet, more than there are routes

let scrapes = []; // { time, samples }, oldest first
let charts = null;
let routes = []; // in the order in which they were first seen, so that each keeps its colour
let runs = 0; // times that the view was opened or left; only the latest run asks

/** Ask for metrics while this view is looked at; `onFailure` is told when that fails. */
export function startLive(onFailure) {
  const run = ++runs;
  const tick = async () => {
    if (run !== runs) return;
    let pause = PERIOD_SECONDS;
    try {
      if (!document.hidden) await scrape(() => run === runs);
    } catch (error) {
      if (run === runs) onFailure(error);
      pause *= 5;
    }
    setTimeout(tick, 1000 * pause);
  };
  return tick();
}

export const stopLive = () => { runs += 1; };

async function scrape(wanted) {
  const text = await (await call("metrics")).text();
  if (!wanted()) return;
  scrapes = [...scrapes, { time: Date.now() / 1000, samples: parseMetrics(text) }].slice(-KEPT);
  charts ??= makeCharts();
  addRoutes(scrapes.at(-1).samples);
  redraw();
}

/** A line and a choice for each route that is new. */
function addRoutes(samples) {
  const names = (samples.get("s2sent_requests_total") ?? []).map(({ labels }) => labels.route);
  for (const route of new Set(names)) {
    if (UNSHOWN.has(route) || routes.includes(route)) continue;
    charts.rate.addSeries(line(route, colourOf(routes.length)));
    byId("live-route").append(element("option", { value: route }, route));
    routes.push(route);
  }
}

const colourOf = (place) => () => themeColour(`--series-${place % COLOURS}`);

function redraw() {
  const times = scrapes.map(({ time }) => time);
  const route = byId("live-route").value;
  const rate = (labels) => series(1, (before, after, seconds) => gained(before, after, "s2sent_requests_total", labels) / seconds);
  const latency = (share) => series(WINDOW, (before, after) => {
    const seconds = quantile(before, after, DURATION, { route }, share);
    return seconds === null ? null : 1000 * seconds;
  });
  const batch = series(1, (before, after) => {
    const count = gained(before, after, "s2sent_batch_texts_count");
    return count > 0 ? gained(before, after, "s2sent_batch_texts_sum") / count : null;
  });
  const queue = scrapes.map(({ samples }) => valueOf(samples, "s2sent_queue_texts"));
  const [p50, p99] = [latency(0.5), latency(0.99)];
  const rates = routes.map((one) => rate({ route: one }));
  charts.rate.setData([times, ...rates]);
  charts.latency.setData([times, p50, p99]);
  charts.queue.setData([times, queue]);
  charts.batch.setData([times, batch]);
  const total = rates.reduce((sum, one) => sum + (one.at(-1) ?? 0), 0);
  const last = (values) => values.findLast((value) => value !== null);
  const shown = (value, unit = "") => (value == null ? "–" : `${decimals(value, value < 10 ? 1 : 0)}${unit}`);
  byId("live-tiles").replaceChildren(...Object.entries({
    "requests per second": shown(total),
    "p50": shown(last(p50), " ms"),
    "p99": shown(last(p99), " ms"),
    "requests now": String(valueOf(scrapes.at(-1).samples, "s2sent_requests_in_flight") - 1),
    "texts embedded": valueOf(scrapes.at(-1).samples, "s2sent_texts_total").toLocaleString("en"),
  }).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

/** A value for each scrape from it and one some scrapes before; null where there is none yet. */
function series(back, value) {
  return scrapes.map(({ time, samples }, index) => {
    const before = scrapes[Math.max(0, index - back)];
    return index ? value(before.samples, samples, time - before.time) : null;
  });
}

function makeCharts() {
  byId("live-route").addEventListener("change", redraw);
  return {
    rate: chart("chart-rate", []),
    latency: chart("chart-latency", ["p50", "p99"]),
    queue: chart("chart-queue", ["texts"]),
    batch: chart("chart-batch", ["texts, mean"]),
  };
}

const line = (label, stroke) => ({ label, stroke, width: 2, spanGaps: true, points: { show: false } });

function chart(id, names) {
  const colour = (name) => () => themeColour(name);
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const holder = byId(id);
  const plot = new uPlot({
    width: holder.clientWidth,
    height: HEIGHT,
    cursor: { y: false },
    legend: { live: false },
    scales: { y: { range: (_, low, high) => [0, Math.max(1, (high ?? 0) * 1.1)] } },
    axes: [axis, { ...axis, size: 46 }],
    series: [{}, ...names.map((label, place) => line(label, colourOf(place)))],
  }, [[], ...names.map(() => [])], holder);
  new ResizeObserver(() => {
    if (holder.clientWidth) plot.setSize({ width: holder.clientWidth, height: HEIGHT });
  }).observe(holder);
  return plot;
}
