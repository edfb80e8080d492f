// Prometheus' text format, and the rates and quantiles between two scrapes of it.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Samples by name: lists of {labels, value}. */
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (!match) continue; // a comment, or the end
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(LABEL)].map((label) => [label[1], label[2]]));
    if (!samples.has(match[1])) samples.set(match[1], []);
    samples.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return samples;
}

/** The sum of a metric's samples with these labels. */
export function valueOf(samples, name, wanted = {}) {
  return (samples.get(name) ?? [])
    .filter(({ labels }) => Object.entries(wanted).every(([key, value]) => labels[key] === value))
    .reduce((sum, { value }) => sum + value, 0);
}

/** What a counter or a histogram's part gained between two scrapes. */
export const gained = (before, after, name, labels) => valueOf(after, name, labels) - valueOf(before, name, labels);

/** A quantile of what a histogram gained, by linear interpolation in its bucket; null for nothing. */
export function quantile(before, after, name, labels, share) {
  const bounds = (after.get(`${name}_bucket`) ?? [])
    .filter((sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value))
    .map((sample) => sample.labels.le);
  const counts = bounds.map((le) => gained(before, after, `${name}_bucket`, { ...labels, le }));
  const total = counts.at(-1) ?? 0;
  if (!(total > 0)) return null;
  const place = counts.findIndex((count) => count >= share * total);
  const [low, high] = [place ? Number(bounds[place - 1]) : 0, Number(bounds[place].replace("+Inf", "Infinity"))];
  if (high === Infinity) return low;
  const below = place ? counts[place - 1] : 0;
  return low + ((high - low) * (share * total - below)) / (counts[place] - below);
}
