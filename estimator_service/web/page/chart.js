// What the charts share: scales, ticks and axes. A chart is drawn in pixels of its own width, so text keeps its size.

const MARGIN = { left: 44, right: 34, top: 10, bottom: 22 };

function frame(svg) {
  const box = svg.getBoundingClientRect();
  const [width, height] = [Math.max(box.width, 120), Math.max(box.height, 120)];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
}

const scale = (from, to, start, end) => (value) =>
  to === from ? (start + end) / 2 : start + ((value - from) / (to - from)) * (end - start);

// About `wanted` round values within [low, high].
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const out = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) out.push(value);
  return { values: out, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

// Times within [from, to] on round local minutes, hours and days.
function timeTicks(from, to, wanted) {
  const rough = (to - from) / wanted;
  const step = TIME_STEPS.find((size) => size >= rough) || 86400 * Math.ceil(rough / 86400);
  const offset = -60 * new Date(1000 * from).getTimezoneOffset();
  const out = [];
  for (let at = Math.ceil((from + offset) / step) * step - offset; at <= to; at += step) out.push(at);
  return out;
}

// Labels at `places` (pixels, ascending not needed) moved apart to keep `gap` between them, within [low, high].
function spread(places, gap, low, high) {
  const order = places.map((place, i) => [place, i]).sort((a, b) => a[0] - b[0]);
  let last = -Infinity;
  for (const item of order) last = item[0] = Math.max(item[0], last + gap, low);
  let next = high + gap;
  for (const item of order.reverse()) next = item[0] = Math.min(item[0], next - gap);
  const out = [];
  for (const [place, i] of order) out[i] = place;
  return out;
}

// Positions are ordered, and so are their colours.
const hue = (index, total) => (total < 2 ? 205 : 205 + (170 * index) / (total - 1));

function paint(node, index, total) {
  node.style.setProperty("--hue", String(hue(index, total)));
  return node;
}
