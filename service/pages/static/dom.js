// Small helpers for the page: elements by id, new elements, and short forms of texts and numbers.

export const byId = (id) => document.getElementById(id);

/** A new element. Children are nodes or strings; strings become text, never markup. */
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

export function svgElement(name, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

/** The beginning of a text, in at most so many characters. */
export function shorten(text, limit = 110) {
  return text.length > limit ? `${beginning(text, limit - 1).trimEnd()}…` : text;
}

/** At most so many UTF-16 units of a text; a pair of them is not cut in half, which is no JSON. */
export const beginning = (text, limit) => text.slice(0, limit).replace(/[\uD800-\uDBFF]$/, "");

/** A number with so many digits; what rounds to zero has no sign. */
export const decimals = (number, digits = 3) => {
  const text = number.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
};

/** "1 text", "2 texts". */
export const counted = (number, name) => `${number.toLocaleString("en")} ${name}${number === 1 ? "" : "s"}`;

/** What stands where a list would be empty. */
export const remark = (sentence) => element("li", { className: "soft" }, sentence);

/** The colour of the style sheet's variable, as the theme has it now. */
export function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Let the browser draw and answer before the next step of long work. */
export const nextFrame = () => new Promise((resolve) => setTimeout(resolve));
