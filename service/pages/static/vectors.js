// Arithmetic on embeddings: cosines, neighbours, rank correlation and principal components.

import { nextFrame } from "./dom.js";

const SLICE_MILLISECONDS = 30; // of work between two looks at the page
const ALIKE = 1e-9; // a mean squared distance to the mean below it is rounding: the vectors are equal
const ROUNDING = 1e-12; // what is left of a vector below this share of its length is rounding

/** The first components of each vector, scaled to length 1. */
export function cut(vectors, dimensions) {
  return vectors.map((vector) => {
    const part = vector.subarray(0, dimensions);
    const length = Math.sqrt(dot(part, part)) || 1;
    return Float32Array.from(part, (value) => value / length);
  });
}

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** The cosines of all pairs of unit vectors, row after row [n * n]; works in slices. */
export async function cosineMatrix(vectors) {
  const n = vectors.length;
  const cosines = new Float32Array(n * n);
  let since = performance.now();
  for (let row = 0; row < n; row++) {
    for (let column = row; column < n; column++) {
      const cosine = Math.min(1, Math.max(-1, dot(vectors[row], vectors[column])));
      cosines[row * n + column] = cosines[column * n + row] = cosine;
    }
    if (performance.now() - since > SLICE_MILLISECONDS) {
      await nextFrame();
      since = performance.now();
    }
  }
  return cosines;
}

/** The pairs {a, b, cosine} with the highest or, reversed, the lowest cosines. */
export function extremePairs(cosines, n, count, { lowest = false } = {}) {
  const sign = lowest ? -1 : 1;
  const best = []; // sorted, best first
  for (let a = 0; a < n; a++) {
    for (let b = a + 1; b < n; b++) {
      const cosine = cosines[a * n + b];
      if (best.length === count && sign * cosine <= sign * best[count - 1].cosine) continue;
      let place = best.length;
      while (place && sign * best[place - 1].cosine < sign * cosine) place--;
      best.splice(place, 0, { a, b, cosine });
      best.length = Math.min(best.length, count);
    }
  }
  return best;
}

/** Positions by falling score; equal scores keep their order. */
export function ranking(scores) {
  return [...scores.keys()].sort((a, b) => scores[b] - scores[a] || a - b);
}

/** The scores of every vector against one, and their ranking without that one's position. */
export function neighbours(vectors, anchor) {
  const scores = vectors.map((vector) => dot(vector, vectors[anchor]));
  return { scores, order: ranking(scores).filter((position) => position !== anchor) };
}

/** Spearman's correlation of two lists of cosines above the diagonal. */
export function spearman(first, second, n) {
  const [a, b] = [ranks(upper(first, n)), ranks(upper(second, n))];
  const mean = (a.length - 1) / 2;
  let both = 0, alone = 0, other = 0;
  for (let i = 0; i < a.length; i++) {
    both += (a[i] - mean) * (b[i] - mean);
    alone += (a[i] - mean) ** 2;
    other += (b[i] - mean) ** 2;
  }
  return alone && other ? both / Math.sqrt(alone * other) : 1;
}

function upper(matrix, n) {
  const values = new Float32Array((n * (n - 1)) / 2);
  let place = 0;
  for (let row = 0; row < n; row++) {
    values.set(matrix.subarray(row * n + row + 1, (row + 1) * n), place);
    place += n - row - 1;
  }
  return values;
}

/** Ranks from 0; equal values share the mean of theirs. */
function ranks(values) {
  const sorted = Float32Array.from(values).sort();
  const place = new Map();
  for (let start = 0; start < sorted.length; ) {
    let stop = start;
    while (stop < sorted.length && sorted[stop] === sorted[start]) stop++;
    place.set(sorted[start], (start + stop - 1) / 2);
    start = stop;
  }
  return Float64Array.from(values, (value) => place.get(value));
}

/** Two principal components: {points: [n] of [x, y], explained: share of the variance, spread: all of it}. */
export function principalComponents(vectors) {
  const dimensions = vectors[0].length;
  const mean = new Float64Array(dimensions);
  for (const vector of vectors) vector.forEach((value, i) => { mean[i] += value / vectors.length; });
  const centred = vectors.map((vector) => Float64Array.from(vector, (value, i) => value - mean[i]));
  const spread = centred.reduce((sum, row) => sum + dot(row, row), 0);
  const total = spread || 1;
  const axes = [];
  let explained = 0;
  for (let k = 0; k < 2; k++) {
    const axis = leadingAxis(centred, axes);
    explained += centred.reduce((sum, row) => sum + dot(row, axis) ** 2, 0) / total;
    axes.push(axis);
  }
  return { points: centred.map((row) => axes.map((axis) => dot(row, axis))), explained, spread: spread > ALIKE * vectors.length ? spread : 0 };
}

/** Power iteration on X'X, orthogonal to the axes found before; zeros where no variance is left. */
function leadingAxis(rows, found) {
  let axis = Float64Array.from(rows[0], (_, i) => Math.sin(i + 1 + found.length));
  for (let step = 0; step < 20; step++) {
    const next = new Float64Array(axis.length);
    for (const row of rows) {
      const weight = dot(row, axis);
      for (let i = 0; i < next.length; i++) next[i] += weight * row[i];
    }
    const before = Math.sqrt(dot(next, next));
    for (const other of found) {
      const shared = dot(next, other);
      next.forEach((_, i) => { next[i] -= shared * other[i]; });
    }
    const length = Math.sqrt(dot(next, next));
    if (length <= ROUNDING * before) return new Float64Array(axis.length);
    axis = next.map((value) => value / length);
  }
  return axis;
}
