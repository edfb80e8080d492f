// Groups and planes of the embeddings, which a worker makes while the page goes on.

let worker = null; // of the latest embeddings

const policy = self.trustedTypes?.createPolicy("worker", { createScriptURL: (url) => url });

/** Promises of {clusters, components, neighbours}; those of earlier embeddings are never kept. */
export function analyse({ vectors, cosines }) {
  worker?.terminate();
  const url = new URL("map-worker.js", import.meta.url).href;
  worker = new Worker(policy ? policy.createScriptURL(url) : url);
  const found = {}, settle = {};
  for (const kind of ["clusters", "components", "neighbours"]) {
    found[kind] = new Promise((resolve, reject) => { settle[kind] = { resolve, reject }; });
    found[kind].catch(() => {}); // it is told where it is waited for
  }
  worker.onmessage = ({ data }) => settle[data.kind].resolve(data.value);
  worker.onerror = (event) => {
    for (const { reject } of Object.values(settle)) reject(new Error(`the map's worker ended: ${event.message}`));
  };
  const flat = new Float32Array(vectors.length * vectors[0].length);
  vectors.forEach((vector, position) => flat.set(vector, position * vector.length));
  worker.postMessage({ vectors: flat, n: vectors.length, cosines });
  return found;
}
