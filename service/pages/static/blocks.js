// The view of blocks: what the selector takes from each block, per text and on average.

import { callJson } from "./api.js";
import { byId, decimals, element, shorten } from "./dom.js";

const MOST_EXPLAINED = 100;

let asked = null; // the results of the latest call
let explained = null; // the results whose bars are shown

export async function showBlocks(results, info, options) {
  asked = results;
  if (explained === results) return;
  if (!info.block_weights) {
    byId("block-bars").replaceChildren(element("p", { className: "notice" },
      "This model gives no block weights. It has no selector, or was exported before they were an output: export its checkpoint again with s2sent-train export."));
    return;
  }
  const inputs = results.texts.slice(0, Math.min(MOST_EXPLAINED, info.max_client_batch_size));
  const { texts } = await callJson("explain", { inputs, ...options });
  if (results !== asked) return; // other texts were embedded meanwhile
  explained = results;
  const numbers = texts[0].blocks.map((block) => block.block);
  byId("block-legend").replaceChildren(...numbers.map((number, place) =>
    element("span", { className: `block-${place % 6}` }, `block ${number}`)));
  const mean = numbers.map((_, place) =>
    texts.reduce((sum, text) => sum + text.blocks[place].mean, 0) / texts.length);
  const left = results.texts.length - inputs.length;
  byId("block-bars").replaceChildren(
    row("Mean of the texts", mean.map((value, place) => ({ block: numbers[place], mean: value }))),
    ...texts.map((text, position) => row(inputs[position], text.blocks)),
    ...(left > 0 ? [element("p", { className: "soft" }, `The first ${inputs.length} texts; ${left} more are not shown.`)] : []));
}

function row(label, blocks) {
  const total = blocks.reduce((sum, block) => sum + Math.abs(block.mean), 0) || 1;
  const parts = blocks.map((block, place) => {
    const part = element("span", { className: `block-${place % 6}`, title: describe(block) });
    part.style.flexGrow = Math.abs(block.mean) / total;
    return part;
  });
  const numbers = blocks.map((block) => `${block.block}: ${decimals(block.mean)}`).join("   ");
  const bar = element("div", { className: "bar", ariaHidden: "true" }, ...parts);
  const line = element("div", { className: "bar-row" },
    element("span", {}, shorten(label, 70)), bar, element("code", {}, numbers));
  line.dataset.weights = JSON.stringify(blocks.map((block) => block.mean));
  return line;
}

function describe(block) {
  const range = block.min === undefined ? "" : `, features from ${decimals(block.min)} to ${decimals(block.max)}`;
  return `block ${block.block}: ${decimals(block.mean, 4)}${range}`;
}
