// Turns the examples of the API reference into forms that send them to this server.

import { call, setKey } from "./api.js";
import { element } from "./dom.js";

const SHOWN_CHARACTERS = 20_000;

const key = element("input", { type: "password", autocomplete: "off", ariaLabel: "API key", placeholder: "API key, where one is needed" });
key.addEventListener("input", () => setKey(key.value.trim()));
document.querySelector("h1").after(
  element("p", {}, "Each route has a form that sends its example, which you can edit. ", key, " ",
    element("a", { href: "docs/plain" }, "Without scripts")));

for (const details of document.querySelectorAll("details[data-path]")) {
  const { method, path } = details.dataset;
  const body = details.querySelector("textarea");
  const send = element("button", { type: "button" }, `Send ${method.toUpperCase()} ${path}`);
  const answer = element("pre", { tabIndex: 0, hidden: true, ariaLabel: `Answer of ${path}` });
  const status = element("p", { className: "soft" });
  status.setAttribute("role", "status");
  send.addEventListener("click", () => sendExample(path, body, status, answer));
  details.querySelector("summary").textContent = "Try it";
  details.append(send, status, answer);
}

async function sendExample(path, body, status, answer) {
  const since = performance.now();
  try {
    const response = await call(path.slice(1), body ? JSON.parse(body.value) : undefined);
    const text = await response.text();
    status.textContent = `${response.status}, ${Math.round(performance.now() - since)} ms`;
    answer.textContent = text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)} …` : text;
    answer.hidden = false;
  } catch (error) {
    const isJson = !(error instanceof SyntaxError);
    status.textContent = isJson ? `${error.status || ""} ${error.message} ${error.advice ?? ""}` : `The body is not JSON: ${error.message}`;
    answer.hidden = true;
  }
}
