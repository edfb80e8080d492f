// Groups of embeddings that are near each other: which text is in which, in what order, and what words are theirs.

import { dot, principalComponents } from "./vectors.js";

const FEWEST_TEXTS = 6; // fewer are one group
const MOST_GROUPS = 10; // as many as there are colours
const ROUNDS = 12; // of k-means, at most
const BEGINNINGS = 2; // of k-means, of which the best is kept
const LEAST_SILHOUETTE = 0.05; // below it no division is better than one group
const WORDS = 2; // of a group's name

// Frequent English words, which tell nothing of a text.
const FREQUENT = new Set(("a about after all also am an and any are as at be because been but by can could did do does " +
  "for from get had has have he her his how i if in into is it its just like many me more most my no not of on one or " +
  "our out over s she so some t than that the their them then there these they this to two up us was we were what when " +
  "where which who why will with would you your").split(" "));

/** A sequence of numbers in [0, 1) that is the same in every run (mulberry32). */
export function seeded(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/**
 * Groups by k-means on unit vectors; of all numbers of groups the one with the best silhouette (Rousseeuw, 1987).
 * Returns {owners: [n] numbers of groups, count, order: [n] positions, group after group, like beside like}.
 */
export function clustersOf(vectors, cosines) {
  const n = vectors.length;
  let best = { owners: new Array(n).fill(0), count: 1, score: LEAST_SILHOUETTE };
  for (let count = 2; n >= FEWEST_TEXTS && count <= Math.min(MOST_GROUPS, n / 2); count++) {
    const owners = kMeans(vectors, count);
    const score = silhouette(owners, cosines, count);
    if (score > best.score) best = { owners, count, score };
  }
  return { ...numbered(best, vectors) };
}

/** Numbers the groups along the first principal component, and puts the texts in that order. */
function numbered({ owners, count }, vectors) {
  const places = principalComponents(vectors).points.map(([x]) => x);
  const means = Array.from({ length: count }, (_, group) => {
    const own = places.filter((_, position) => owners[position] === group);
    return own.reduce((sum, place) => sum + place, 0) / (own.length || 1);
  });
  const ranks = [...means.keys()].sort((a, b) => means[a] - means[b]);
  const renamed = owners.map((group) => ranks.indexOf(group));
  const order = [...renamed.keys()].sort((a, b) => renamed[a] - renamed[b] || places[a] - places[b]);
  return { owners: renamed, count, order };
}

function kMeans(vectors, count) {
  let best = null;
  for (let beginning = 0; beginning < BEGINNINGS; beginning++) {
    const run = oneRun(vectors, firstCentres(vectors, count, seeded(1 + beginning)));
    if (!best || run.sum > best.sum) best = run;
  }
  return best.owners;
}

/** k-means++ (Arthur and Vassilvitskii, 2007): far texts are likelier to be centres. */
function firstCentres(vectors, count, random) {
  const centres = [vectors[Math.floor(random() * vectors.length)]];
  const far = vectors.map((vector) => Math.max(0, 1 - dot(vector, centres[0])));
  while (centres.length < count) {
    let left = random() * far.reduce((sum, one) => sum + one, 0);
    const chosen = far.findIndex((one) => (left -= one) <= 0);
    centres.push(vectors[Math.max(0, chosen)]);
    vectors.forEach((vector, i) => { far[i] = Math.min(far[i], Math.max(0, 1 - dot(vector, centres.at(-1)))); });
  }
  return centres;
}

function oneRun(vectors, centres) {
  let owners = [], sum = 0;
  for (let round = 0; round < ROUNDS; round++) {
    sum = 0;
    const next = vectors.map((vector) => {
      const scores = centres.map((centre) => dot(vector, centre));
      const best = Math.max(...scores);
      sum += best;
      return scores.indexOf(best);
    });
    if (next.every((group, position) => group === owners[position])) break;
    owners = next;
    centres = centres.map((centre, group) => meanOf(vectors.filter((_, position) => owners[position] === group)) ?? centre);
  }
  return { owners, sum };
}

/** The mean of vectors, scaled to length 1; null of none, or where they cancel out. */
function meanOf(vectors) {
  if (!vectors.length) return null;
  const mean = new Float32Array(vectors[0].length);
  for (const vector of vectors) for (let i = 0; i < mean.length; i++) mean[i] += vector[i];
  const length = Math.sqrt(dot(mean, mean));
  return length ? mean.map((value) => value / length) : null;
}

/** The mean over texts of how much nearer a text is to its own group than to the next one, in [-1, 1]. */
function silhouette(owners, cosines, count) {
  const n = owners.length;
  const sizes = new Array(count).fill(0);
  for (const group of owners) sizes[group] += 1;
  if (sizes.includes(0)) return -1;
  let total = 0;
  for (let row = 0; row < n; row++) {
    if (sizes[owners[row]] === 1) continue;
    const sums = new Float64Array(count);
    for (let column = 0; column < n; column++) sums[owners[column]] += 1 - cosines[row * n + column];
    const own = sums[owners[row]] / (sizes[owners[row]] - 1);
    let other = Infinity;
    for (let group = 0; group < count; group++) if (group !== owners[row]) other = Math.min(other, sums[group] / sizes[group]);
    total += (other - own) / (Math.max(own, other) || 1);
  }
  return total / n;
}

/** What each group is about, in words that more of its texts have than of the others'; "" where there are none. */
export function wordsOf(texts, owners, count) {
  const sizes = new Array(count).fill(0);
  const found = new Map(); // of each word how many texts of each group have it
  texts.forEach((text, position) => {
    sizes[owners[position]] += 1;
    for (const word of new Set(text.toLowerCase().match(/[\p{L}\p{N}][\p{L}\p{N}'’-]+/gu) ?? [])) {
      if (FREQUENT.has(word)) continue;
      if (!found.has(word)) found.set(word, new Array(count).fill(0));
      found.get(word)[owners[position]] += 1;
    }
  });
  return sizes.map((size, group) => {
    const scored = [...found].map(([word, counts]) => {
      const others = counts.reduce((sum, one) => sum + one, 0) - counts[group];
      return { word, score: counts[group] / size - others / (texts.length - size || 1) };
    });
    const telling = scored.filter(({ score }) => score > 0);
    telling.sort((a, b) => b.score - a.score || b.word.length - a.word.length);
    return telling.slice(0, WORDS).map(({ word }) => word).join(", ");
  });
}
