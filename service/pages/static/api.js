// Calls of the server's API: the key, which stays in memory, and what each failure means.

// Texts and characters of one request; more are sent one request after another.
let textsPerRequest = 128;
const CHARACTERS_PER_REQUEST = 1_000_000;

let apiKey = "";

export const setKey = (key) => { apiKey = key; };
export const hasKey = () => apiKey !== "";

/** Send no more texts in a request than the server takes. */
export const limitTexts = (most) => { textsPerRequest = Math.min(textsPerRequest, most); };

/** A request that failed: what happened, what to do, and the status, 0 where no answer came. */
export class CallFailed extends Error {
  constructor(status, message, advice) {
    super(message);
    this.status = status;
    this.advice = advice;
  }
}

/** GET or, with a body, POST; the answer's response. Raises CallFailed, or AbortError. */
export async function call(path, body, { signal } = {}) {
  const headers = apiKey ? { Authorization: `Bearer ${apiKey}` } : {};
  const request = { headers, signal };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    Object.assign(request, { method: "POST", body: JSON.stringify(body) });
  }
  let response;
  try {
    response = await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallFailed(0, "The server does not answer.", "See whether it runs, then try again. Your texts are kept.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export const callJson = async (...args) => (await call(...args)).json();

async function failure(response) {
  let message = `The server answered ${response.status}.`;
  try {
    const { error } = await response.json();
    message = error?.message || error || message; // OpenAI's routes answer an object
    // How a program sends a key is no advice for people.
    if (response.status === 401) message = `${message.split(/[.,:;](?:\s|$)/)[0]}.`;
  } catch {
    // A proxy in between may answer with something else than JSON.
  }
  return new CallFailed(response.status, message, adviceFor(response));
}

function adviceFor(response) {
  const seconds = response.headers.get("Retry-After");
  switch (response.status) {
    case 401: return "Type the key into the field API key. It is kept in this page's memory only.";
    case 429: return `The server is busy, or the key's quota is used up. Try again${seconds ? ` in ${seconds} s` : " later"}. Your texts are kept.`;
    case 503: return "The server is starting or stopping. Try again in a moment. Your texts are kept.";
    case 504: return "The request took too long. Try fewer texts.";
    case 413: return "Try fewer or shorter texts.";
    default: return "Your texts are kept.";
  }
}

/**
 * Unit embeddings of texts: {vectors: [n] Float32Array, tokens: [n], unknown: [n], truncated: [n]}.
 * `onProgress` is told how many texts are done after each request.
 */
export async function embed(texts, options = {}, { signal, onProgress = () => {} } = {}) {
  const result = { vectors: [], tokens: [], unknown: [], truncated: [] };
  for (const inputs of requestsOf(texts)) {
    const body = { inputs, encoding: "base64", details: true, ...options };
    const answer = await callJson("embed", body, { signal });
    for (const text of answer.embeddings) result.vectors.push(floats(text));
    for (const detail of answer.details.texts) {
      result.tokens.push(detail.tokens);
      result.unknown.push(detail.unknown);
      result.truncated.push(detail.truncated);
    }
    onProgress(result.vectors.length);
  }
  return result;
}

function* requestsOf(texts) {
  let part = [], characters = 0;
  for (const text of texts) {
    const full = part.length === textsPerRequest || characters + text.length > CHARACTERS_PER_REQUEST;
    if (part.length && full) {
      yield part;
      part = [];
      characters = 0;
    }
    part.push(text);
    characters += text.length;
  }
  if (part.length) yield part;
}

/** The little-endian float32 numbers in a base64 text. */
function floats(base64) {
  return new Float32Array(Uint8Array.from(atob(base64), (one) => one.charCodeAt(0)).buffer);
}
