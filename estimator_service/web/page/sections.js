// The parts of a pair that are words and tables.

// |predicted − observed| acceptance of a position that is marked.
const GAP_WORTH_A_LOOK = 0.05;

const SHOWN_VERSIONS = 12;
const SHOWN_DRIFTS = 12;

// Whether a gap is worth a look and more than the noise of its `n` observations.
const suspicious = (gap, n) => known(gap) && Math.abs(gap) > Math.max(GAP_WORTH_A_LOOK, 3 * Math.sqrt(0.25 / Math.max(n, 1)));

function drawAttention(pair, service) {
  const lines = [...pair.notices];
  if (service.store !== "ok") lines.unshift(`the store cannot commit: ${service.store}`);
  if (pair.pinned) lines.unshift(`pinned to version ${versionText(pair.pinned)}: fits are not published until acceptd unpin`);
  const quiet = ["", "unchanged", "pinned"].includes(pair.refit.last_held);
  if (!quiet) lines.push(`the latest refit was held: ${pair.refit.last_held}`);
  const workers = pair.workers_connected;
  for (const worker of workers) {
    if (worker.quarantined) lines.push(`worker ${worker.worker} is quarantined: ${worker.quarantined}`);
    else if (worker.last_rejected_update) lines.push(`worker ${worker.worker} refused an update: ${worker.last_rejected_update}`);
  }
  if (!pair.workers) lines.push("no worker is connected");
  const shown = lines.length > 9 ? [...lines.slice(0, 8), `and ${lines.length - 8} more`] : lines;
  const fine = shown.length === 0;
  resize(byId("attention"), fine ? 1 : shown.length, () => element("li")).forEach((item, i) => {
    setText(item, fine ? "nothing needs attention" : shown[i]);
    setClass(item, fine ? "fine" : "");
  });
}

function drawFacts(pair, now, rate) {
  const scores = pair.calibration || {};
  const errors = pair.standard_errors;
  const gap = scores.gap;
  const link = pair.refit.published_link || pair.cause;
  fillFacts(byId("facts"), [
    ["Slope", fixed(pair.coefficients.slope, 4), errors.length ? `± ${fixed(errors[0], 4)}` : ""],
    ["Gap", signed(gap, 4), "predicted − observed", suspicious(gap, scores.observations) ? "warn" : ""],
    ["Log-loss", fixed(scores.log_loss, 4), scores.observations ? `${count(scores.observations)} observations` : ""],
    ["Calibration error", fixed(scores.ece, 4), `of survival ${fixed(scores.survival_ece, 4)}`],
    ["AUC", fixed(scores.auc, 3), "1: ranks perfectly"],
    ["Version", versionText(pair.version), `${link}, ${ago(pair.published_at_seconds, now)}`],
    ["Workers", count(pair.workers), `mode ${pair.mode}, ${percent(pair.exploration_rate, 1)} explored`],
    ["Observations", count(sum(pair.observations_by_position)), rate === null ? "" : `${count(rate)} a second`],
    ["Refits", count(pair.refit.done), pair.refit.done ? `the last in ${duration(pair.refit.last_seconds)}` : ""],
    ["Drift evidence", fixed(Math.max(0, ...Object.values(pair.drift_scores)), 2), "1 and large: named"],
  ]);
}

function drawPositions(pair) {
  const { intercepts, evidence } = pair.coefficients;
  const scores = pair.calibration || {};
  const at = (values, k) => (values || [])[k];
  const all = sum(pair.observations_by_position);
  const columns = ["Position", "Intercept", "±", "Evidence", "Observed", "Accepted", "Gap", "Log-loss", "AUC"];
  fillTable(byId("positions"), columns.map((name) => [name, "number"]), intercepts.map((intercept, k) => {
    const gap = at(scores.gap_by_position, k);
    const n = (scores.observations * pair.observations_by_position[k]) / all;
    return [
      String(k), signed(intercept, 4), evidence[k] >= 1 ? fixed(pair.standard_errors[k + 1], 4) : NONE, count(evidence[k]),
      count(pair.observations_by_position[k]), percent(pair.acceptances_by_position[k], pair.observations_by_position[k]),
      [signed(gap, 4), suspicious(gap, n) ? "warn" : ""],
      fixed(at(scores.log_loss_by_position, k), 4), fixed(at(scores.auc_by_position, k), 3),
    ];
  }));
}

function drawBudget(pair) {
  const totals = pair.totals;
  show(byId("budget-empty"), !totals.steps);
  show(byId("budget"), Boolean(totals.steps));
  fillFacts(byId("budget"), [
    ["Verified", percent(totals.verified, totals.scheduled), `${count(totals.verified)} of ${count(totals.scheduled)} drafted`],
    ["Accepted", count(totals.accepted), `${percent(totals.accepted, totals.verified)} of verified`],
    ["Lost, estimated", count(totals.lost_accepted), "accepted tokens that were trimmed"],
    ["Verification saved", duration(totals.verification_saved_seconds), "by the cost table"],
    ["Explored", count(totals.explored), `${percent(totals.explored, totals.scheduled)} of drafted`],
    ["Steps clamped", count(totals.clamped_steps), `of ${count(totals.steps)}; ${count(totals.zero_budget_steps)} verified nothing`],
  ]);
}

function drawHeld(pair) {
  const rows = [];
  const add = (what, reasons, unit) => {
    for (const [reason, n] of Object.entries(reasons).sort((a, b) => b[1] - a[1])) if (n) rows.push([what, reason, `${count(n)} ${unit}`]);
  };
  add("Refit held", pair.refit.held, "rounds");
  add("Batch refused", pair.rejects, "batches");
  add("Excluded", pair.exclusions, "blocks");
  show(byId("held-empty"), rows.length === 0);
  fillTable(byId("held"), [["What", "text"], ["Reason", "text"], ["Count", "number"]], rows);
}

function drawDrifts(pair) {
  const left = pair.drifts.length - SHOWN_DRIFTS;
  show(byId("drifts-note"), left > 0 || pair.drifts.length === 0);
  setText(byId("drifts-note"), left > 0 ? `The newest ${SHOWN_DRIFTS}; ${count(left)} more in acceptd show --json.` : "No change named so far.");
  const columns = [["When", "text"], ["Kind", "text"], ["What gave it away", "text wide"], ["Slope moved", "number"], ["Intercepts moved", "number"], ["Named after", "number"]];
  fillTable(byId("drifts"), columns, pair.drifts.slice(0, SHOWN_DRIFTS).map((drift) => [
    fullClock(drift.at_seconds), [`${drift.kind} drift`, drift.kind === "pair" ? "warn" : ""], drift.cause,
    `${signed(drift.slope, 3)} ± ${fixed(drift.slope_error, 3)}`, `${signed(drift.intercept, 3)} ± ${fixed(drift.intercept_error, 3)}`,
    `${count(drift.delay_rounds)} rounds`,
  ]));
}

function drawWorkers(pair, now) {
  const shown = pair.workers_connected;
  const left = pair.workers_left_off;
  show(byId("workers-note"), left > 0 || shown.length === 0);
  setText(byId("workers-note"), left > 0 ? `${count(shown.length)} of ${count(pair.workers)} shown; acceptd workers lists all.` : "None connected.");
  const columns = [["Worker", "text wide"], ["Workload", "text"], ["Version", "text"], ["Mode", "text"], ["Blocks", "number"], ["Connected", "number"], ["Hook, vLLM", "text gap"], ["State", "text wide"]];
  fillTable(byId("workers"), columns, shown.map((worker) => {
    const current = versionText(worker.version_applied) === versionText(pair.version);
    const trouble = worker.quarantined || worker.last_rejected_update;
    const state = worker.quarantined ? `quarantined: ${trouble}` : trouble ? `refused: ${trouble}` : current ? "in force" : "on another version";
    return [
      worker.worker, worker.workload || NONE, versionText(worker.version_applied), worker.mode || NONE, count(worker.blocks),
      duration(Math.max(0, now - worker.connected_at_seconds)),
      [worker.hook_version, worker.vllm_version].filter(Boolean).join(", ") || NONE, [state, trouble ? "warn" : ""],
    ];
  }));
}

function drawVersions(points) {
  const newest = points.slice(-SHOWN_VERSIONS).reverse();
  const columns = [["Version", "text"], ["Published", "text"], ["Cause", "text"], ["Slope", "number"], ["Log-loss", "number"], ["Calibration error", "number"]];
  fillTable(byId("versions"), columns, newest.map((point) => [
    versionText(point.version), fullClock(point.at), point.cause, fixed(point.slope, 4), fixed(point.log_loss, 4), fixed(point.ece, 4),
  ]));
}
