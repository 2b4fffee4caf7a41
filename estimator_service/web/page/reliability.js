// Confidence beside what came of it. On the diagonal the estimates are right.

// Observations below which a bin shows noise and is left out.
const FEW = 10;

function drawReliability(bins) {
  const svg = byId("reliability");
  const shown = (bins || []).filter((bin) => bin.observations >= FEW && known(bin.predicted));
  svg.setAttribute("role", "img");
  svg.replaceChildren();
  if (!shown.length) {
    svg.setAttribute("aria-label", "Reliability diagram: no round scored yet");
    svg.append(shape("text", { x: 12, y: 28 }, "no round scored yet since the service started"));
    setText(byId("reliability-readout"), "");
    return;
  }
  const box = frame(svg);
  const [x, y] = [scale(0, 1, box.left, box.right), scale(0, 1, box.bottom, box.top)];
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(shape("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    svg.append(shape("line", { class: "grid", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom }));
    svg.append(shape("text", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)));
    svg.append(shape("text", { x: x(value), y: box.bottom + 16, "text-anchor": "middle" }, String(value)));
  }
  svg.append(shape("line", { class: "diagonal", x1: x(0), x2: x(1), y1: y(0), y2: y(1) }));
  const most = Math.max(...shown.map((bin) => bin.observations));
  for (const bin of shown) {
    const error = 2 * Math.sqrt((bin.observed * (1 - bin.observed)) / bin.observations);
    const [low, high] = [Math.max(0, bin.observed - error), Math.min(1, bin.observed + error)];
    const at = x(bin.predicted);
    svg.append(shape("line", { class: "whisker", x1: at, x2: at, y1: y(low), y2: y(high) }));
    const radius = 2.5 + 4.5 * Math.sqrt(bin.observations / most);
    const dot = shape("circle", { class: "dot", cx: at, cy: y(bin.observed), r: radius });
    const told = `confidence ${fixed(bin.predicted, 2)}, accepted ${fixed(bin.observed, 2)} of ${count(bin.observations)}`;
    dot.append(shape("title", {}, told));
    svg.append(dot);
  }
  const worst = shown.reduce((a, b) => (gapOf(b) > gapOf(a) ? b : a));
  const text = `Farthest from the diagonal: confidence ${fixed(worst.predicted, 2)}, accepted ${fixed(worst.observed, 2)}`;
  svg.setAttribute("aria-label", `Reliability diagram, ${shown.length} bins. ${text}`);
  const told = `Across: mean confidence; up: share accepted; larger dots: more observations; bars: ±2 standard errors. ${text}`;
  setText(byId("reliability-readout"), `${told}.`);
}

const gapOf = (bin) => Math.abs(bin.predicted - bin.observed);
