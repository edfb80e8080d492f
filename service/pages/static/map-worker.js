// Beside the page: groups the embeddings, and puts them on a plane in two ways.

/* global importScripts, UMAP */

const NEIGHBOURS = 15;
const EPOCHS = 250;
const FEWEST_TEXTS = 4; // fewer have no neighbours to keep

const policy = self.trustedTypes?.createPolicy("vendored", { createScriptURL: (url) => url });
const library = "vendor/umap.js";
importScripts(policy ? policy.createScriptURL(library) : library);

/** Takes {vectors: [n * dim], n, cosines: [n * n]}; answers three times: groups, then each plane. */
self.onmessage = async ({ data: { vectors: flat, n, cosines } }) => {
  const [{ clustersOf, seeded }, { principalComponents }] = await Promise.all([import("./clusters.js"), import("./vectors.js")]);
  const dim = flat.length / n;
  const vectors = Array.from({ length: n }, (_, position) => flat.subarray(position * dim, (position + 1) * dim));
  postMessage({ kind: "clusters", value: clustersOf(vectors, cosines) });
  const components = principalComponents(vectors);
  postMessage({ kind: "components", value: components });
  const hasNeighbours = n >= FEWEST_TEXTS && components.spread > 0;
  postMessage({ kind: "neighbours", value: hasNeighbours ? { points: neighbourPlane(vectors, cosines, seeded(1)) } : components });
};

/** UMAP (McInnes et al., 2018) of the nearest texts by cosine. */
function neighbourPlane(vectors, cosines, random) {
  const n = vectors.length;
  const nNeighbors = Math.min(NEIGHBOURS, n - 1);
  const [indices, distances] = [[], []];
  for (let row = 0; row < n; row++) {
    const own = cosines.subarray(row * n, (row + 1) * n);
    const order = [...own.keys()].sort((a, b) => own[b] - own[a]).filter((position) => position !== row);
    indices.push([row, ...order.slice(0, nNeighbors - 1)]);
    distances.push(indices[row].map((position) => (position === row ? 0 : Math.max(0, 1 - own[position]))));
  }
  const umap = new UMAP.UMAP({ nNeighbors, nEpochs: EPOCHS, minDist: 0.2, random });
  umap.setPrecomputedKNN(indices, distances);
  return umap.fit(vectors);
}
