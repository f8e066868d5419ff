// Elements and texts that all pages share. Text of users becomes text nodes, never HTML.

export const COLORS = {
  COMPLETE: "var(--complete)", PRUNED: "#e69f00", FAILED: "#d55e00", INVALID: "#cc79a7",
  LOST: "#8c6d1f", CANCELLED: "#8a8f98", RUNNING: "#56b4e9", PAUSED: "#b09fd6",
  WAITING: "#c0c4ca",
};

export const byId = (id) => document.getElementById(id);

export const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && key !== "style") made[key] = value; else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
};

export const say = (text, isProblem = false) => {
  byId("status").textContent = text;
  byId("status").classList.toggle("problem", isProblem);
};

// ---- texts

export const numberText = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value);
  const text = String(Number(value.toPrecision(6)));
  return Math.abs(value) < 1e-4 ? Number(value.toPrecision(6)).toExponential() : text;
};

export const durationText = (seconds) => {
  if (!seconds) return "";
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};

const TIME = { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" };

export const timeText = (seconds) =>
  seconds ? new Date(1000 * seconds).toLocaleString(undefined, TIME) : "";

export const sizeText = (bytes) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; bytes >= 1000 && unit < units.length - 1; unit += 1) bytes /= 1000;
  return `${Number(bytes.toPrecision(3))} ${units[unit]}`;
};

export const stateCell = (state, text = state) => {
  const cell = element("span", { className: "state" }, text);
  cell.style.setProperty("--state", COLORS[state] || "#c0c4ca");
  return cell;
};

export const runAddress = (id) => `#/run/${encodeURIComponent(id)}`;

export const trialAddress = (id, number) => `${runAddress(id)}/trial/${number}`;

export const modelAddress = (name, version) => `#/models/${encodeURIComponent(name)}/${version}`;

// ---- parts of pages

export const section = (title, ...children) =>
  element("section", {}, element("h2", {}, title), ...children);

export const pairs = (values) => element("dl", {}, ...Object.entries(values).flatMap(
  ([name, value]) => [
    element("dt", {}, name),
    element("dd", {}, value instanceof Node ? value : numberText(value)),
  ]));

export const plainTable = (titles, rows) => element("div", { className: "wide" },
  element("table", { className: "plain" },
    element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", {}, title)))),
    element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells.map((cell) =>
      (cell instanceof HTMLTableCellElement ? cell
        : element("td", {}, cell instanceof Node ? cell : numberText(cell)))))))));

// The answer of the user, also in a frame of a notebook, where a browser may show no confirm().
export const confirmed = (question, yes) => new Promise((done) => {
  const dialog = byId("confirm");
  byId("question").textContent = question;
  byId("yes").textContent = yes;
  byId("yes").onclick = () => dialog.close("yes");
  byId("no").onclick = () => dialog.close("no");
  dialog.onclose = () => done(dialog.returnValue === "yes");
  dialog.returnValue = "no";
  dialog.showModal();
});

export const compared = (a, b) => {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
};

export const sortedRows = (rows, value, descending) => {
  const has = (row) => value(row) !== null && value(row) !== undefined;
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => (has(a) && has(b) ? sign : 1) * compared(value(a), value(b)));
};

export const later = (action, pause_ms) => {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, pause_ms);
  };
};
