// The JavaScript clients against the service: snippets of the page, similarities, errors, waiting.
//
// `python -m tests.clients javascript` copies this file beside its node_modules and names the server
// in CLIENTS_URL and the page in CLIENTS_PAGE.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import test from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { InferenceClient } from "@huggingface/inference";
import { OpenAIEmbeddings } from "@langchain/openai";
import { embedMany } from "ai";
import OpenAI from "openai";

const url = process.env.CLIENTS_URL;
const PAGE_URL = "http://localhost:8080";
const GUITAR = "A man is playing a guitar.";
const MUSIC = "Someone plays music.";
const STOCKS = "The stock market fell.";
const TOLERANCE = 1e-5; // an embedding does not depend on its batch, within this

/** The service's own vectors of texts, each sent alone and read as raw float32. */
async function known(texts) {
  const rows = [];
  for (const inputs of texts) {
    const answer = await fetch(`${url}/embed`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/octet-stream" },
      body: JSON.stringify({ inputs }),
    });
    assert.equal(answer.status, 200);
    rows.push([...new Float32Array(await answer.arrayBuffer())]);
  }
  return rows;
}

async function assertKnown(given, texts) {
  const expected = await known(texts);
  assert.equal(given.length, expected.length);
  expected.forEach((row, index) => assertClose(given[index], row));
}

function assertClose(given, expected) {
  assert.equal(given.length, expected.length);
  const differences = expected.map((value, at) => Math.abs(value - given[at]));
  assert.ok(Math.max(...differences) <= TOLERANCE, `off by ${Math.max(...differences)}`);
}

const product = (a, b) => a.reduce((sum, value, at) => sum + value * b[at], 0);

const page = readFileSync(process.env.CLIENTS_PAGE, "utf8");
const SNIPPET = /<!-- javascript: ([\w-]+) -->\n```javascript\n(.*?)```/gs;
const snippets = new Map([...page.matchAll(SNIPPET)].map((found) => [found[1], found[2]]));

/** Runs a snippet of the page as a module of its own; returns its variable of this name. */
async function runSnippet(name, variable) {
  const code = snippets.get(name);
  assert.ok(code.includes(PAGE_URL));
  const file = new URL(`snippet-${name}.mjs`, import.meta.url);
  writeFileSync(file, `${code.replaceAll(PAGE_URL, url)}\nexport { ${variable} };\n`);
  return (await import(file))[variable];
}

test("every snippet of the page is run", () => {
  const checked = ["openai", "ai-sdk", "langchain", "huggingface", "huggingface-similarity"];
  assert.deepEqual([...snippets.keys()].sort(), checked.sort());
});

for (const name of ["openai", "ai-sdk", "langchain"]) {
  test(`the snippet ${name} gives the vectors`, async () => {
    await assertKnown(await runSnippet(name, "embeddings"), [GUITAR, MUSIC]);
  });
}

test("the snippet huggingface gives the vector", async () => {
  const embedding = await runSnippet("huggingface", "embedding");
  await assertKnown([embedding.flat()], [GUITAR]);
});

test("the snippet huggingface-similarity gives the cosines, from the bare URL", async () => {
  const scores = await runSnippet("huggingface-similarity", "scores");
  const [source, music, stocks] = await known([GUITAR, MUSIC, STOCKS]);
  assertClose(scores, [product(source, music), product(source, stocks)]);
});

test("openai: numbers and base64, which it asks for by itself, are the same", async () => {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any" });
  for (const encoding_format of [undefined, "float"]) {
    const input = [GUITAR, MUSIC];
    const answer = await client.embeddings.create({ model: "any", input, encoding_format });
    await assertKnown(answer.data.map((item) => item.embedding), input);
    assert.ok(answer.usage.prompt_tokens > 0);
  }
});

test("openai: an error has the service's sentence", async () => {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
  const refused = client.embeddings.create({ model: "any", input: "a", dimensions: 1_000_000 });
  await assert.rejects(refused, (error) => {
    assert.equal(error.status, 400);
    return error.message.includes("dimensions is 1000000");
  });
});

test("openai: a client waits for a busy service", async () => {
  const baseURL = `${process.env.CLIENTS_BUSY_URL}/v1`;
  const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 8 });
  const texts = Array.from({ length: 6 }, (_, number) => `Text ${number} of several.`);
  const one = async (input) => (await client.embeddings.create({ model: "any", input })).data[0];
  const answers = await Promise.all(texts.map(one));
  await assertKnown(answers.map((item) => item.embedding), texts);
});

test("ai: more texts than one call takes", async () => {
  const provider = createOpenAICompatible({ name: "s2sent", baseURL: `${url}/v1` });
  const values = Array.from({ length: 100 }, (_, number) => `Text ${number}.`);
  const model = provider.textEmbeddingModel("any");
  const { embeddings, usage } = await embedMany({ model, values });
  await assertKnown(embeddings, values);
  assert.ok(usage.tokens > 0);
});

test("langchain: documents and a query", async () => {
  const model = new OpenAIEmbeddings({ apiKey: "any", configuration: { baseURL: `${url}/v1` } });
  await assertKnown([await model.embedQuery(MUSIC)], [MUSIC]);
  const texts = Array.from({ length: 700 }, (_, number) => `Document ${number % 7}.`);
  const embeddings = await model.embedDocuments(texts);
  await assertKnown(embeddings.slice(0, 7), texts.slice(0, 7));
  assert.equal(embeddings.length, 700);
});

test("huggingface: several texts, and the service's sentence in an error", async () => {
  const client = new InferenceClient(undefined, { endpointUrl: url });
  await assertKnown(await client.featureExtraction({ inputs: [GUITAR, MUSIC] }), [GUITAR, MUSIC]);
  await assert.rejects(client.featureExtraction({ inputs: [""] }));
});
