// The labels of a map: names of groups and beginnings of texts, none of which covers another.

import { shorten } from "./dom.js";

const SIZE = 12; // CSS pixels
const CHARACTERS = 30;
const MOST_LABELLED = 40; // texts in sight; of more only the first ones have labels
const GAP = 12; // between a dot's middle and its label
const DOT = 7; // half of a dot

const context = document.createElement("canvas").getContext("2d");

/** Labels {x, y, text, group}; those of groups come before those of the texts `first`, and these before the others. */
export function labelsOf({ results: { texts }, places, owners, words, width, height }, { first }) {
  const taken = []; // boxes [left, top, right, bottom]; of many dots only the labels, which stand over them
  if (places.length <= MOST_LABELLED) taken.push(...places.map(([x, y]) => [x - DOT, y - DOT, x + DOT, y + DOT]));
  const labels = [];
  const add = (text, spots, bold, group) => {
    context.font = `${bold ? "600 " : ""}${bold ? SIZE + 1 : SIZE}px system-ui, sans-serif`;
    const length = context.measureText(text).width + 4;
    for (const [x, y] of spots(length)) {
      const box = [x - 2, y - SIZE - 2, x + length, y + 5];
      const free = box[0] >= 0 && box[2] <= width && box[1] >= 0 && box[3] <= height &&
        taken.every((other) => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]);
      if (!free) continue;
      taken.push(box);
      labels.push({ x, y, text, group });
      return;
    }
  };
  if (words.length > 1) words.forEach((name, group) => name && addGroup(name, group));
  const inSight = [...places.keys()].filter((position) =>
    places[position][0] >= 0 && places[position][0] <= width && places[position][1] >= 0 && places[position][1] <= height);
  const others = inSight.length > MOST_LABELLED ? [] : inSight;
  for (const position of new Set([...first, ...others])) {
    const [x, y] = places[position];
    add(shorten(texts[position], CHARACTERS), (length) => [
      [x + GAP, y + 4], [x - GAP - length, y + 4], [x - length / 2, y - GAP], [x - length / 2, y + GAP + SIZE]]);
  }
  return labels;

  function addGroup(name, group) {
    const own = places.filter((_, position) => owners[position] === group);
    const middle = (axis) => own.map((place) => place[axis]).sort((a, b) => a - b)[Math.floor(own.length / 2)];
    const [x, y] = [middle(0), middle(1)];
    add(name, (length) => [0, -24, 24, -40, 40, -60, 60].map((up) => [Math.min(Math.max(2, x - length / 2), width - length - 2), y + up]), true, group);
  }
}
