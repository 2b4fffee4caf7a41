// Asks the service every POLL_SECONDS for its state and draws it. The pair shown is the one that the address names.

const POLL_SECONDS = 2;
const HISTORY_SECONDS = 60;
const MISSED_SECONDS = 1;
// Points of a course that are kept here until the next history, which is thinned again.
const MAX_POINTS = 480;

const course = { pair: null, points: [], asked: -Infinity };
const seen = { pair: null, at: 0, observations: 0, rate: null };

// Positions that a readout names; the table has them all.
const READ_OUT = 8;
const readOut = (intercepts) => {
  const named = intercepts.slice(0, READ_OUT).map((value, k) => `β${k} ${signed(value, 3)}`);
  return named.join(", ") + (intercepts.length > READ_OUT ? ` and ${intercepts.length - READ_OUT} more` : "");
};
const charts = {
  slope: new Course("slope", {
    title: "Slope", values: (point) => [point.slope], digits: 2,
    describe: (point) => `${fullClock(point.at)}, version ${versionText(point.version)} (${point.cause}): slope ${fixed(point.slope, 4)}`,
  }),
  intercepts: new Course("intercepts", {
    title: "Intercepts, nats", values: (point) => point.intercepts, digits: 1,
    describe: (point) => `${fullClock(point.at)}, version ${versionText(point.version)}: ${readOut(point.intercepts)}`,
  }),
  loss: new Course("loss", {
    title: "Log-loss, nats an observation", values: (point) => [point.log_loss], digits: 2, step: false,
    describe: (point) => `${fullClock(point.at)}, version ${versionText(point.version)}: log-loss ${fixed(point.log_loss, 4)}, calibration error ${fixed(point.ece, 4)}`,
  }),
};

let chosen = "";
function wanted() {
  chosen = new URLSearchParams(location.hash.slice(1)).get("pair") ?? chosen;
  return chosen;
}

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(8000), cache: "no-store" });
  if (!answer.ok) throw new Error(`${path.split("?")[0]}: ${answer.status}`);
  return answer.json();
}

function drawService(state) {
  const { service } = state;
  const parts = [`version ${service.version}`, `epoch ${service.epoch}`, plural(service.pairs, "pair"), plural(service.workers, "worker")];
  setText(byId("service"), parts.join(" · ") + (service.status === "ok" ? "" : ` · ${service.status}`));
}

function drawPairs(state) {
  show(byId("pairs"), state.pairs.length > 0);
  show(byId("pairs-left-off"), state.pairs_left_off > 0);
  setText(byId("pairs-left-off"), `${count(state.pairs_left_off)} more with fewer workers; acceptd pairs lists all.`);
  const make = () => element("li", {}, element("a", {}, ...["name", "figure", "figure", "figure", "figure"].map((name) => element("span", { class: name }))));
  resize(byId("pair-list"), state.pairs.length, make).forEach((item, i) => {
    const pair = state.pairs[i];
    const link = item.firstElementChild;
    const href = `#${new URLSearchParams({ pair: pair.id })}`;
    if (link.getAttribute("href") !== href) link.setAttribute("href", href);
    if (state.pair && state.pair.id === pair.id) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    const notices = pair.notices ? plural(pair.notices, "notice") : "";
    const texts = [pair.id, `slope ${fixed(pair.slope, 3)}`, plural(pair.workers, "worker"), `${count(pair.observations)} obs.`, notices];
    [...link.children].forEach((part, j) => setText(part, texts[j]));
    setClass(link.lastElementChild, notices ? "figure warn" : "figure");
  });
}

function drawEmpty(state) {
  const text = state.pairs.length
    ? `The service does not know the pair ${wanted()}. Choose one above.`
    : "No worker has connected yet. Point the hook at this service with ACCEPTD_ADDRESS and start vLLM; its log says in one line whether the hook is active.";
  show(byId("empty"), !state.pair);
  setText(byId("empty"), state.pair ? "" : text);
  show(byId("pair"), Boolean(state.pair));
}

function observe(pair, now) {
  const observations = sum(pair.observations_by_position);
  if (seen.pair !== pair.id) Object.assign(seen, { pair: pair.id, rate: null });
  else if (now > seen.at) seen.rate = Math.max(0, observations - seen.observations) / (now - seen.at);
  Object.assign(seen, { at: now, observations });
  return seen.rate;
}

const later = (a, b) => a.epoch > b.epoch || (a.epoch === b.epoch && a.counter > b.counter);
const skipped = (before, now) => later(now, before) && (now.epoch > before.epoch || now.counter > before.counter + 1);

async function follow(pair, now) {
  if (course.pair !== pair.id) Object.assign(course, { pair: pair.id, points: [], asked: -Infinity });
  // Versions that were published between two polls are in the history alone.
  const missed = course.points.length > 0 && skipped(course.points[course.points.length - 1].version, pair.version);
  const age = now - course.asked;
  if (age > HISTORY_SECONDS || (missed && age > MISSED_SECONDS) || course.points.length > MAX_POINTS) {
    const history = await ask(`/api/history?${new URLSearchParams({ pair: pair.id })}`);
    if (course.pair !== history.pair) return;
    Object.assign(course, { points: history.points, asked: now });
  }
  const newest = course.points[course.points.length - 1];
  if (!newest || later(pair.version, newest.version)) {
    const scores = pair.cause === "refit" && pair.calibration ? pair.calibration : {};
    const { slope, intercepts } = pair.coefficients;
    const point = { version: pair.version, at: pair.published_at_seconds, cause: pair.cause, slope, intercepts };
    course.points.push({ ...point, log_loss: scores.log_loss, ece: scores.ece });
  }
}

function drawPair(state) {
  const { pair, now, service } = state;
  const key = pair.key;
  setText(byId("pair-title"), pair.id);
  const details = [`K = ${key.num_speculative_tokens}`, key.method, key.draft_sampling, key.quantization].filter(Boolean);
  setText(byId("pair-key"), `${key.target} ← ${key.draft} (${details.join(", ")})`);
  document.title = `${pair.id} – acceptd`;
  drawAttention(pair, service);
  drawFacts(pair, now, observe(pair, now));
  for (const chart of Object.values(charts)) chart.set(course.points, pair.drifts, now);
  drawReliability(pair.calibration && pair.calibration.reliability);
  drawPositions(pair);
  drawBudget(pair);
  drawHeld(pair);
  drawDrifts(pair);
  drawWorkers(pair, now);
  drawVersions(course.points);
}

let latest = null;
let answered = 0;

function drawLive(trouble) {
  const live = byId("live");
  // Only a change of state is announced; the seconds are not.
  setClass(live, trouble ? "lost" : "");
  const since = answered ? ` since ${clock(answered / 1000)}` : "";
  setText(live, trouble ? `no answer${since}; trying again` : "live");
}

async function look() {
  try {
    const state = await ask(`/api/state?${new URLSearchParams({ pair: wanted() })}`);
    if (state.pair) await follow(state.pair, state.now);
    return state;
  } catch {
    return null;
  }
}

let asking = false;
async function poll() {
  if (asking || document.hidden) return;
  asking = true;
  const state = await look();
  asking = false;
  drawLive(state === null);
  if (state === null) return;
  [latest, answered] = [state, Date.now()];
  drawService(state);
  drawPairs(state);
  drawEmpty(state);
  if (state.pair) drawPair(state);
}

document.querySelector(".skip").addEventListener("click", (event) => {
  // The address names the pair, and stays as it is.
  event.preventDefault();
  byId("main").focus();
});
addEventListener("hashchange", () => poll());
document.addEventListener("visibilitychange", () => poll());
new ResizeObserver(() => latest && latest.pair && drawReliability(latest.pair.calibration && latest.pair.calibration.reliability)).observe(byId("reliability"));
setInterval(poll, 1000 * POLL_SECONDS);
await poll();
