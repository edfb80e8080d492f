// Where a point of the plane is on the screen, and how wheel, dragging and two fingers change that.

const MARGIN = 28; // CSS pixels
const MOST_ZOOM = 40;
const CLICK = 4; // CSS pixels that a click may move

/** The view of everything: a factor, and what is added afterwards. */
export const wholeView = () => ({ zoom: 1, x: 0, y: 0 });

/** A view that is larger by a factor, in which the place x, y stays. */
export function zoomed(view, factor, x, y) {
  const zoom = Math.min(MOST_ZOOM, Math.max(1, view.zoom * factor));
  if (zoom === 1) return wholeView();
  const real = zoom / view.zoom;
  return { zoom, x: x - real * (x - view.x), y: y - real * (y - view.y) };
}

/** The places [n] of [x, y] of points in a view of so many pixels. */
export function toPlace(points, view, width, height) {
  const [x, y] = [scale(points.map((point) => point[0]), width), scale(points.map((point) => point[1]), height)];
  return points.map((point) => [view.zoom * x(point[0]) + view.x, view.zoom * y(point[1]) + view.y]);
}

function scale(values, size) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return (value) => (high > low ? MARGIN + ((value - low) / (high - low)) * (size - 2 * MARGIN) : size / 2);
}

/** Call `move` with the next view while somebody zooms or drags in an element. */
export function listenToMoves(node, viewNow, move) {
  const pointers = new Map(); // of the fingers that are down, where they were
  let dragged = 0;
  const inside = (event) => {
    const box = node.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  node.addEventListener("wheel", (event) => {
    event.preventDefault();
    move(zoomed(viewNow(), 1.0015 ** -event.deltaY, ...inside(event)));
  }, { passive: false });
  node.addEventListener("pointerdown", (event) => {
    if (!pointers.size) dragged = 0;
    pointers.set(event.pointerId, inside(event));
  });
  node.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const now = inside(event);
    const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
    dragged += Math.abs(dx) + Math.abs(dy);
    if (dragged < CLICK) return;
    node.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, now);
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    const view = viewNow();
    if (!other) return move({ ...view, x: view.x + dx, y: view.y + dy });
    const apart = ([x, y]) => Math.hypot(x - other[0], y - other[1]) || 1;
    return move(zoomed(view, apart(now) / apart(before), ...other));
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
    node.addEventListener(end, (event) => pointers.delete(event.pointerId));
  }
  // What ends a drag is no click.
  node.addEventListener("click", (event) => dragged >= CLICK && event.stopImmediatePropagation(), { capture: true });
}
