// What is on screen as a call of the API, in three languages.

const KEY_NAME = "S2SENT_API_KEY"; // the variable the code takes the key from; the key is not shown

/** The route and the body that give what a view shows. */
export function requestOf(view, { texts, query, prompts, options }) {
  if (view === "search" && query) {
    const parameters = { ...depthOf(options), ...prompts };
    const body = { inputs: { queries: [query], documents: texts } };
    return { path: "similarity", body: Object.keys(parameters).length ? { ...body, parameters } : body };
  }
  if (view === "tokens") return { path: "tokenize", body: { inputs: texts } };
  if (view === "blocks") return { path: "explain", body: { inputs: texts, ...depthOf(options) } };
  return { path: "embed", body: { inputs: texts, ...options } };
}

// Scores and block weights are of all dimensions.
const depthOf = (options) => ("depth" in options ? { depth: options.depth } : {});

/** The code, for "curl", "python" or "javascript". */
export function snippet(language, { path, body }, { base, withKey }) {
  const url = new URL(path, base).href;
  return { curl, python, javascript }[language](url, body, withKey);
}

function curl(url, body, withKey) {
  const json = JSON.stringify(body).replaceAll("'", "'\\''");
  const key = withKey ? ` \\\n  -H "Authorization: Bearer $${KEY_NAME}"` : "";
  return `curl -s ${url} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${json}'`;
}

function python(url, body, withKey) {
  const key = withKey ? `, headers={"Authorization": f"Bearer {os.environ['${KEY_NAME}']}"}` : "";
  const imports = withKey ? "import os\n\nimport httpx" : "import httpx";
  return `${imports}\n\nbody = ${JSON.stringify(body, null, 4)}\nanswer = httpx.post("${url}", json=body${key})\nprint(answer.json())`;
}

function javascript(url, body, withKey) {
  const key = withKey ? `, Authorization: \`Bearer \${process.env.${KEY_NAME}}\`` : "";
  return `const answer = await fetch("${url}", {\n  method: "POST",\n  headers: { "Content-Type": "application/json"${key} },\n  body: JSON.stringify(${JSON.stringify(body, null, 2)}),\n});\nconsole.log(await answer.json());`;
}
