// The page itself: its texts, its views as tabs, the key, and what is told when a call fails.

import { analyse } from "./analysis.js";
import { callJson, embed, hasKey, limitTexts, setKey } from "./api.js";
import { showBlocks } from "./blocks.js";
import { listenToHeatMap, showCosines } from "./cosines.js";
import { chosenOptions, listenToDepth, prepareDepth, showDepth } from "./depth.js";
import { byId, counted, element } from "./dom.js";
import { startLive, stopLive } from "./live.js";
import { lightHits, listenToMap, showMap } from "./map.js";
import { chosenPrompts, listenToSearch, searchedFor, showSearch } from "./search.js";
import { requestOf, snippet } from "./snippets.js";
import { EXAMPLES, MOST_TEXTS, readFile, textsOf } from "./texts.js";
import { countAround, mostlyUnknown, showTokens } from "./tokens.js";
import { cosineMatrix } from "./vectors.js";

const LONG_PASTE = 5_000; // characters

let info = null; // the answer of /info
let results = null; // { texts, vectors, tokens, unknown, truncated, cosines, options, analysis }, or none of no texts
let running = new AbortController();

const VIEWS = {
  cosines: () => results && showCosines(results),
  search: () => results && showSearch(results),
  depth: () => results && showDepth(results),
  blocks: () => results && showBlocks(results, info, depthOption()),
  tokens: () => results && showTokens(results, info, guarded),
  map: () => results && showMap(results),
  live: () => startLive(fail),
};

/** Show the chosen view, or why there is nothing to see. */
function showView() {
  const name = currentView();
  if (name !== "live") stopLive();
  byId("nothing").hidden = name === "live" || results !== null;
  byId(name).hidden = !byId("nothing").hidden;
  return VIEWS[name]();
}

const currentView = () => document.querySelector('[role="tab"][aria-selected="true"]').getAttribute("aria-controls");

// The server's defaults may be shallower or shorter; the page compares with the whole embedding.
const depthOption = () => (info.full_depth && info.default_depth ? { depth: info.full_depth } : {});
const dimensionsOption = () => (info.default_dimensions ? { dimensions: info.dim } : {});
const wholeOptions = () => ({ ...depthOption(), ...dimensionsOption() });

/** The options of the API that give what the current view shows. */
const shownOptions = () => ({ ...wholeOptions(), ...(currentView() === "depth" ? chosenOptions() : {}) });

async function start() {
  await guarded(async () => {
    info = await callJson("info");
    limitTexts(info.max_client_batch_size);
    const device = info.provider.replace("ExecutionProvider", "");
    byId("model").textContent = `${info.served_model_name} · ${info.dim} numbers · ${info.precision} · ${device}`;
    byId("key-field").hidden = !hasKey();
    await countAround();
    prepareDepth(info);
    fillPrompts();
    await embedTexts();
  });
}

function fillPrompts() {
  const names = Object.keys(info.prompts);
  byId("prompt-field").hidden = names.length === 0;
  const unchosen = info.default_prompt_name ? `default: ${info.default_prompt_name}` : "none";
  byId("prompt").replaceChildren(element("option", { value: "" }, unchosen),
    ...names.map((name) => element("option", { value: name }, name)));
}

async function embedTexts() {
  if (!info) return start();
  const { texts, found } = textsOf(byId("texts").value);
  running.abort();
  if (texts.length === 0) {
    results = null;
    byId("progress").textContent = "";
    byId("unknown").hidden = true;
    tell("There is no text. Type one per line, or load an example.");
    return showView();
  }
  running = new AbortController();
  const { signal } = running;
  const left = found - texts.length;
  const note = left ? ` The page compares ${MOST_TEXTS.toLocaleString("en")} texts at most: ${left.toLocaleString("en")} of ${found.toLocaleString("en")} are left out. For whole files there is s2sent embed.` : "";
  const since = performance.now();
  const options = wholeOptions();
  const onProgress = (done) => { byId("progress").textContent = `${done} of ${counted(texts.length, "text")} …`; };
  onProgress(0);
  const embedded = await embed(texts, options, { signal, onProgress });
  const cosines = await cosineMatrix(embedded.vectors);
  if (signal.aborted) return undefined;
  results = { texts, ...embedded, cosines, options };
  results.analysis = analyse(results);
  warnOfUnknown();
  showSearch(results);
  byId("progress").textContent = `${counted(texts.length, "text")} in ${Math.round(performance.now() - since)} ms.${note}`;
  document.body.dataset.embedded = String(texts.length);
  return showView();
}

/** Tell of texts that are mostly symbols the model does not know, which it takes for one another. */
function warnOfUnknown() {
  const found = mostlyUnknown(results);
  byId("unknown").hidden = found.length === 0;
  const which = found.slice(0, 5).map((position) => position + 1).join(", ");
  byId("unknown").textContent = `The model does not know half or more of ${found.length === 1 ? `text ${which}` : `${found.length} texts (${which}${found.length > 5 ? " …" : ""})`}: ` +
    "all that it does not know is one token to it, so such texts can look equal. See Tokens.";
}

/** Run a step; a failure is told, and what was pasted stays. */
async function guarded(step) {
  byId("notice").hidden = true;
  try {
    await step();
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  }
}

function fail(error) {
  if (error.status === 401) {
    byId("key-field").hidden = false;
    byId("key").focus();
  }
  byId("progress").textContent = "";
  tell(error.advice ? `${error.message} ${error.advice}` : `Something in this page went wrong: ${error.message}`);
}

function tell(sentence) {
  const notice = byId("notice");
  notice.textContent = sentence;
  notice.hidden = false;
}

function countTexts() {
  const { found } = textsOf(byId("texts").value);
  byId("count").textContent = counted(found, "text");
}

function setTexts(content) {
  byId("texts").value = content;
  countTexts();
  return guarded(embedTexts);
}

function selectTab(tab) {
  for (const other of document.querySelectorAll('[role="tab"]')) {
    const selected = other === tab;
    other.setAttribute("aria-selected", String(selected));
    other.tabIndex = selected ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !selected;
  }
  guarded(async () => showView());
}

function listenToTabs() {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  for (const [place, tab] of tabs.entries()) {
    tab.addEventListener("click", () => selectTab(tab));
    tab.addEventListener("keydown", (event) => {
      const next = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      const target = tabs[(next + tabs.length) % tabs.length];
      target.focus();
      selectTab(target);
    });
  }
}

function listenToInput() {
  const texts = byId("texts");
  texts.addEventListener("input", countTexts);
  texts.addEventListener("paste", pasteAtOnce);
  texts.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) guarded(embedTexts);
  });
  byId("embed").addEventListener("click", () => guarded(embedTexts));
  byId("example").replaceChildren(...Object.keys(EXAMPLES).map((name) => element("option", {}, name)));
  byId("example").addEventListener("change", (event) => setTexts(EXAMPLES[event.target.value].join("\n")));
  byId("file").addEventListener("change", (event) => open(event.target.files[0]));
  texts.addEventListener("dragover", (event) => event.preventDefault());
  texts.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    open(event.dataTransfer.files[0]);
  });
  const useKey = () => {
    setKey(byId("key").value.trim());
    start();
  };
  byId("use-key").addEventListener("click", useKey);
  byId("key").addEventListener("keydown", (event) => event.key === "Enter" && useKey());
}

/** Put a long text in as a whole: a browser that inserts it line by line can take a minute. */
function pasteAtOnce(event) {
  const pasted = event.clipboardData.getData("text/plain");
  if (pasted.length < LONG_PASTE) return;
  event.preventDefault();
  const field = event.target;
  field.setRangeText(pasted, field.selectionStart, field.selectionEnd, "end");
  countTexts();
}

async function open(file) {
  if (file) await setTexts(await readFile(file));
}

function listenToSnippets() {
  for (const button of document.querySelectorAll("[data-language]")) {
    button.addEventListener("click", async () => {
      const { texts } = results ?? textsOf(byId("texts").value);
      const shown = info ? { prompts: chosenPrompts(info), options: shownOptions() } : { options: {} };
      const request = requestOf(currentView(), { texts, query: searchedFor(), ...shown });
      const code = snippet(button.dataset.language, request, { base: document.baseURI, withKey: hasKey() });
      byId("snippet").textContent = code;
      byId("snippet").hidden = false;
      const copied = await navigator.clipboard?.writeText(code).then(() => true, () => false);
      byId("progress").textContent = copied ? "Copied." : "Select the code below to copy it.";
    });
  }
}

listenToTabs();
listenToInput();
listenToHeatMap();
listenToSearch(fail, lightHits);
listenToMap(guarded);
listenToDepth(guarded);
listenToSnippets();
byId("texts").value ||= Object.values(EXAMPLES)[0].join("\n");
countTexts();
start();
