// Curves over time, each value in force until the next. The pointer, or the arrow keys, read them out.

// Pixels that the label of a change takes.
const LABEL = 96;

class Course {
  // describe(point) → text for the readout; values(point) → one number for each curve; names: of the curves, or [].
  constructor(id, { title, values, describe, digits = 2, step = true }) {
    this.svg = byId(id);
    this.readout = byId(`${id}-readout`);
    this.title = title;
    this.values = values;
    this.describe = describe;
    this.digits = digits;
    this.step = step;
    this.points = [];
    this.drifts = [];
    this.now = 0;
    this.at = null;
    this.svg.setAttribute("role", "img");
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.look(null));
    this.svg.addEventListener("blur", () => this.look(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  set(points, drifts, now) {
    const shown = points.filter((point) => this.values(point).some(known));
    if (shown.length !== this.points.length) this.at = null;
    this.points = shown;
    this.drifts = drifts;
    this.now = now;
    this.draw();
  }

  look(at) {
    this.at = at;
    this.draw();
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined || !this.points.length) return;
    event.preventDefault();
    const last = this.points.length - 1;
    this.look(Math.max(0, Math.min(last, (this.at ?? last) + move)));
  }

  point(event) {
    if (!this.points.length || !this.time) return;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const place = (i) => this.time(this.points[i].at);
    let nearest = 0;
    for (let i = 1; i < this.points.length; i++) {
      if (Math.abs(place(i) - x) < Math.abs(place(nearest) - x)) nearest = i;
    }
    this.look(nearest);
  }

  draw() {
    const { svg, points } = this;
    svg.replaceChildren();
    if (!points.length) {
      svg.setAttribute("aria-label", `${this.title}: nothing yet`);
      svg.append(shape("text", { x: 12, y: 28 }, "nothing yet"));
      setText(this.readout, "");
      return;
    }
    const box = frame(svg);
    const newest = points[points.length - 1];
    const total = this.values(newest).length;
    const from = points[0].at;
    const to = this.step ? Math.max(this.now, newest.at, from + 1) : Math.max(newest.at, from + 1);
    const time = (this.time = scale(from, to, box.left, box.right));
    const height = this.axes(box, from, to, time);
    this.marks(box, from, time);
    for (let k = 0; k < total; k++) svg.append(paint(this.curve(k, time, height, box), k, total));
    if (total > 1) this.tags(box, height, total);
    if (this.at !== null) {
      const x = time(points[this.at].at);
      svg.append(shape("line", { class: "cursor", x1: x, x2: x, y1: box.top, y2: box.bottom }));
    }
    svg.setAttribute("aria-label", `${this.title}, ${points.length} versions; latest: ${this.describe(newest)}`);
    setText(this.readout, this.describe(points[this.at ?? points.length - 1]));
  }

  axes(box, from, to, time) {
    const all = this.points.flatMap((point) => this.values(point)).filter(known);
    let [low, high] = [Math.min(...all), Math.max(...all)];
    // A curve that stands still must not look as if it moved.
    const least = 4 * 10 ** -this.digits;
    const pad = Math.max((high - low) * 0.08, (least - (high - low)) / 2);
    [low, high] = [low - pad, high + pad];
    const height = scale(low, high, box.bottom, box.top);
    const grid = ticks(low, high, 4);
    for (const value of grid.values) {
      const y = height(value);
      this.svg.append(shape("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y }));
      this.svg.append(shape("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, fixed(value, grid.digits)));
    }
    this.svg.append(shape("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    for (const at of timeTicks(from, to, Math.max(2, Math.floor((box.right - box.left) / 70)))) {
      const x = time(at);
      this.svg.append(shape("text", { x, y: box.bottom + 16, "text-anchor": "middle" }, clock(at, to - from)));
    }
    return height;
  }

  curve(k, time, height, box) {
    let path = "";
    let y = null;
    for (const point of this.points) {
      const value = this.values(point)[k];
      if (!known(value)) continue;
      const x = time(point.at).toFixed(1);
      if (y !== null && this.step) path += `H${x}`;
      path += `${y === null ? "M" : this.step ? "V" : "L"}${y === null || !this.step ? `${x} ` : ""}${height(value).toFixed(1)}`;
      y = height(value);
    }
    return shape("path", { class: "curve", d: this.step && path ? `${path}H${box.right}` : path });
  }

  tags(box, height, total) {
    const values = this.values(this.points[this.points.length - 1]);
    const every = Math.ceil((total * 11) / (box.bottom - box.top));
    const named = values.map((value, k) => k).filter((k) => k % every === 0 && known(values[k]));
    const places = spread(named.map((k) => height(values[k])), 11, box.top, box.bottom);
    named.forEach((k, i) => {
      const tag = shape("text", { class: "tag", x: box.right + 5, y: places[i] + 4 }, `β${k}`);
      this.svg.append(paint(tag, k, total));
    });
  }

  marks(box, from, time) {
    // From the newest back, since labels of changes close together would cover each other; the log has them all.
    let free = Infinity;
    for (const drift of this.drifts) {
      if (drift.at_seconds < from) continue;
      const x = Math.min(time(drift.at_seconds), box.right);
      this.svg.append(shape("line", { class: "drift", x1: x, x2: x, y1: box.top, y2: box.bottom }));
      if (x > free || x - LABEL < box.left) continue;
      this.svg.append(shape("text", { class: "drift-label", x: x - 4, y: box.top + 9, "text-anchor": "end" }, `${drift.kind} drift`));
      free = x - LABEL;
    }
  }
}
