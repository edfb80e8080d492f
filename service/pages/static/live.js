// The view of the running server: rates, latencies, queue and batches over the last five minutes.

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

let scrapes = []; // { time, samples }, oldest first
let charts = null;
let started = false;

/** Ask for metrics from now on, while the page is looked at; `onFailure` is told when that fails. */
export function startLive(onFailure) {
  if (started) return;
  started = true;
  const tick = async () => {
    let pause = PERIOD_SECONDS;
    try {
      if (!document.hidden) await scrape();
    } catch (error) {
      onFailure(error);
      pause *= 5;
    }
    setTimeout(tick, 1000 * pause);
  };
  tick();
}

async function scrape() {
  const text = await (await call("metrics")).text();
  scrapes = [...scrapes, { time: Date.now() / 1000, samples: parseMetrics(text) }].slice(-KEPT);
  const routes = routesOf(scrapes.at(-1).samples);
  fillRoutes(routes);
  charts ??= makeCharts(routes);
  redraw(routes);
}

function routesOf(samples) {
  const names = (samples.get("s2sent_requests_total") ?? []).map(({ labels }) => labels.route);
  return [...new Set(names)].filter((route) => !UNSHOWN.has(route));
}

function fillRoutes(routes) {
  const select = byId("live-route");
  if (select.options.length) return;
  select.replaceChildren(...routes.map((route) => element("option", { value: route }, route)));
  select.addEventListener("change", () => redraw(routes));
}

function redraw(routes) {
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

function makeCharts(routes) {
  return {
    rate: chart("chart-rate", routes),
    latency: chart("chart-latency", ["p50", "p99"]),
    queue: chart("chart-queue", ["texts"]),
    batch: chart("chart-batch", ["texts, mean"]),
  };
}

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
    series: [{}, ...names.map((label, place) => ({
      label, stroke: colour(`--series-${place % 6}`), width: 2, spanGaps: true, points: { show: false },
    }))],
  }, [[], ...names.map(() => [])], holder);
  new ResizeObserver(() => {
    if (holder.clientWidth) plot.setSize({ width: holder.clientWidth, height: HEIGHT });
  }).observe(holder);
  return plot;
}
