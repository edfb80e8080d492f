// What is typed, dropped or chosen as texts: lines, files, examples, and their limits.

export const MOST_TEXTS = 1000; // the heat map of more could not be read

const TEXT_COLUMNS = ["text", "sentence", "sentences", "content", "title", "question"];

export const EXAMPLES = {
  "Paraphrases": [
    "A man is playing a guitar.",
    "Someone plays music on the street.",
    "A woman is slicing an onion.",
    "The cook cuts vegetables.",
    "A dog runs across the field.",
    "A puppy races over the grass.",
    "The stock market fell sharply today.",
    "Share prices dropped this morning.",
    "It will rain in the afternoon.",
    "The forecast says showers after lunch.",
    "The train to the coast is late.",
    "Our flight was delayed by two hours.",
  ],
  "Support questions": [
    "How do I reset my password?",
    "I forgot my login and cannot get in.",
    "Where can I change my e-mail address?",
    "My parcel has not arrived yet.",
    "When will my order be delivered?",
    "The package came damaged.",
    "I want my money back.",
    "How long does a refund take?",
    "Can I pay by invoice?",
    "Which cards do you accept?",
    "The app crashes when I open it.",
    "The screen stays black after the update.",
  ],
  "Long and short": [
    "Yes.",
    "A cat.",
    "The library opens at nine and closes at six, except on Sundays, when it stays closed.",
    "Open hours of the library",
    Array(40).fill("This sentence comes again and again, so that the text is longer than the model reads.").join(" "),
  ],
};

/** The texts of the field: lines that are not blank, at most MOST_TEXTS of `found`. */
export function textsOf(content) {
  const lines = content.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);
  return { texts: lines.slice(0, MOST_TEXTS), found: lines.length };
}

/** The lines of a dropped or chosen file, as the field takes them. */
export async function readFile(file) {
  const content = await file.text();
  if (!/\.csv$/i.test(file.name)) return content;
  const [head = [], ...rows] = parseCsv(content);
  const named = head.findIndex((name) => TEXT_COLUMNS.includes(name.trim().toLowerCase()));
  const cells = (named < 0 ? [head, ...rows] : rows).map((row) => row[Math.max(named, 0)] ?? "");
  return cells.map((cell) => cell.replace(/\s+/g, " ")).join("\n");
}

/** Rows of cells, as RFC 4180 has them. */
export function parseCsv(content) {
  const rows = [];
  let row = [], cell = "", quoted = false;
  for (let i = 0; i < content.length; i++) {
    const one = content[i];
    if (quoted) {
      if (one !== '"') cell += one;
      else if (content[i + 1] === '"') cell += content[++i];
      else quoted = false;
    } else if (one === '"' && !cell) quoted = true;
    else if (one === ",") { row.push(cell); cell = ""; }
    else if (one === "\n") { rows.push([...row, cell.replace(/\r$/, "")]); row = []; cell = ""; }
    else cell += one;
  }
  if (cell || row.length) rows.push([...row, cell]);
  return rows;
}
