// Numbers and times as text.

const NONE = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

function fixed(value, digits) {
  if (!known(value)) return NONE;
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

const signed = (value, digits) => (known(value) && value >= 0 ? `+${fixed(value, digits)}` : fixed(value, digits));

const count = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : NONE);

const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : NONE);

const versionText = (version) => `${version.epoch}.${version.counter}`;

const sum = (values) => values.reduce((total, value) => total + value, 0);

// Seconds as "4 s", "12 min", "3 h", "2 d".
function duration(seconds) {
  if (seconds < 1 && seconds > 0) return `${(1000 * seconds).toFixed(0)} ms`;
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
}

const ago = (then, now) => (then ? `${duration(Math.max(0, now - then))} ago` : NONE);

// Seconds since the epoch as local time, as fine as a span of `span` seconds needs.
function clock(at, span = 0) {
  const time = new Date(1000 * at);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  const hour = `${two(time.getHours())}:${two(time.getMinutes())}`;
  if (span > 4 * 86400) return day.slice(5);
  if (span > 86400) return `${day.slice(5)} ${hour}`;
  return span > 1200 ? hour : `${hour}:${two(time.getSeconds())}`;
}

const fullClock = (at) => {
  const day = new Date(1000 * at);
  const today = new Date().toDateString() === day.toDateString();
  return today ? clock(at) : `${clock(at, 1e9)} ${clock(at)}`;
};
