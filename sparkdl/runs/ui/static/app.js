// The page of `sparkdl ui`: the list of runs, and one run while it goes on.
"use strict";

const POLL_MS = 1000;
const LIST_MS = 3000;
const ROW_PX = 30;
const COLORS = {
  COMPLETE: "#0072b2", PRUNED: "#e69f00", FAILED: "#d55e00", INVALID: "#cc79a7",
  LOST: "#8c6d1f", CANCELLED: "#8a8f98", RUNNING: "#56b4e9", WAITING: "#c0c4ca",
};

const byId = (id) => document.getElementById(id);

// ---- asking the server

// The token is in the address of the page, after "#", and leaves it at once: an address that is
// copied from the browser then has no secret.
const takeToken = () => {
  const [place, query] = location.hash.split("?");
  const token = new URLSearchParams(query).get("token");
  if (token) {
    sessionStorage.setItem("token", token);
    history.replaceState(null, "", place || "#/");
  }
  return sessionStorage.getItem("token") || "";
};
let token = takeToken();

const say = (text, isProblem = false) => {
  byId("status").textContent = text;
  byId("status").classList.toggle("problem", isProblem);
};

const ask = async (path, options = {}) => {
  const headers = { Authorization: `Bearer ${token}`, ...options.headers };
  const response = await fetch(path, { ...options, headers });
  const value = await response.json();
  if (!response.ok) throw new Error(value.error || response.statusText);
  return value;
};

const address = (...parts) => ["api", "runs", ...parts].map(encodeURIComponent).join("/");

// ---- texts

const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && key !== "style") made[key] = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
};

const numberText = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
};

const durationText = (seconds) => {
  if (!seconds) return "";
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};

const stateCell = (state) => {
  const cell = element("span", { className: "state" }, state);
  cell.style.setProperty("--state", COLORS[state] || "#c0c4ca");
  return cell;
};

// ---- a table with a heading that sorts

const heading = (head, columns, sort, choose) => {
  head.replaceChildren(element("tr", {}, ...columns.map(({ key, title }) => {
    const isSorted = key && sort.key === key;
    const cell = element("th", { scope: "col" }, title);
    if (isSorted) cell.setAttribute("aria-sort", sort.descending ? "descending" : "ascending");
    if (key) cell.onclick = () => choose({ key, descending: isSorted && !sort.descending });
    return cell;
  })));
};

const openable = (row, open) => {
  row.tabIndex = 0;
  row.onclick = (event) => { if (event.target.tagName !== "INPUT") open(); };
  row.onkeydown = (event) => { if (event.key === "Enter") open(); };
  return row;
};

// ---- the list of runs

const RUN_COLUMNS = [
  { key: "run", title: "run" }, { key: "kind", title: "kind" }, { key: "state", title: "state" },
  { key: "started", title: "started" }, { key: "trials", title: "trials" },
  { key: "COMPLETE", title: "complete" }, { key: "FAILED", title: "failed" },
  { key: "PRUNED", title: "pruned" }, { key: "metric", title: "metric" },
  { key: "best", title: "best" }, { key: "seconds", title: "time" },
];
const RUN_CELLS = {
  state: (row) => stateCell(row.state),
  started: (row) => (row.started ? new Date(1000 * row.started).toLocaleString() : ""),
  best: (row) => numberText(row.best),
  seconds: (row) => durationText(row.seconds),
};

const compared = (a, b) => {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
};

const showRuns = () => {
  byId("page").replaceChildren(byId("runs-page").content.cloneNode(true));
  byId("compare").hidden = true;
  document.title = "sparkdl";
  const table = document.querySelector(".list");
  let rows = [], sort = { key: "started", descending: true }, text = "", drawn = "";

  const draw = () => {
    const chosen = rows.filter((row) => !text || Object.values(row).join(" ").toLowerCase().includes(text));
    const hasValue = (row) => row[sort.key] !== null && row[sort.key] !== undefined;
    const sign = sort.descending ? -1 : 1;
    chosen.sort((a, b) => (hasValue(a) && hasValue(b) ? sign : 1) * compared(a[sort.key], b[sort.key]));
    const shown = JSON.stringify([chosen, sort]);
    if (shown === drawn) return;  // What has the focus keeps it.
    drawn = shown;
    heading(table.tHead, RUN_COLUMNS, sort, (next) => { sort = next; draw(); });
    table.tBodies[0].replaceChildren(...chosen.map((row) => {
      const cells = RUN_COLUMNS.map(({ key }) => {
        const content = RUN_CELLS[key] ? RUN_CELLS[key](row) : numberText(row[key]);
        return element("td", { title: String(row[key] ?? "") }, content);
      });
      return openable(element("tr", {}, ...cells), () => { location.hash = `#/run/${row.run}`; });
    }));
    byId("none").hidden = rows.length > 0;
  };

  byId("filter").oninput = (event) => { text = event.target.value.toLowerCase(); draw(); };
  const update = async () => {
    const answer = await ask("api/runs");
    rows = answer.runs;
    byId("root").textContent = answer.root;
    draw();
  };
  return { update, pause_ms: LIST_MS };
};

// ---- the table of trials: of many trials only the rows that are seen are in the page

const trialTable = (id, open) => {
  const place = byId("rows"), table = place.firstElementChild;
  let sort = { key: "number", descending: false }, pages = new Map(), total = 0, columns = [];
  let version = 0, size = 500;

  const query = (offset) => new URLSearchParams({
    offset, sort: sort.key, descending: sort.descending,
    state: byId("state").value, text: byId("text").value,
  });
  const load = async (number) => {
    pages.set(number, pages.get(number) || []);
    const asked = version;
    const answer = await ask(`${address(id, "trials")}?${query(number * size)}`);
    if (asked !== version) return;
    pages.set(number, answer.rows);
    total = answer.total;
    byId("total").textContent = `${total} trials`;
    draw();
  };
  const cells = {
    number: (row) => `${row.number}${row.is_best ? " *" : ""}`,
    state: (row) => stateCell(row.state),
    value: (row) => numberText(row.value),
    seconds: (row) => durationText(row.seconds),
  };
  const cellOf = (row, key) => {
    const [kind, name] = [key.split(":")[0], key.slice(key.indexOf(":") + 1)];
    if (kind === "param") return numberText(row.params[name]);
    if (kind === "metric") return numberText(row.metrics[name]);
    return cells[key] ? cells[key](row) : numberText(row[key]);
  };
  const rowOf = (row) => {
    const tr = element("tr", { className: row.is_best ? "best" : "" });
    tr.append(...columns.map(({ key }) => {
      const content = cellOf(row, key);
      return element("td", { title: typeof content === "string" ? content : "" }, content);
    }));
    tr.style.height = `${ROW_PX}px`;
    return openable(tr, () => open(row));
  };
  const space = (rows) => {
    const cell = element("td", { colSpan: columns.length });
    cell.style.height = `${rows * ROW_PX}px`;
    return element("tr", { className: "space", ariaHidden: "true" }, cell);
  };
  const draw = () => {
    const first = Math.max(0, Math.floor(place.scrollTop / ROW_PX) - 10);
    const last = Math.min(total, first + Math.ceil(place.clientHeight / ROW_PX) + 30);
    const shown = [];
    for (let index = first; index < last; index += 1) {
      const page = Math.floor(index / size);
      if (!pages.has(page)) load(page).catch((error) => say(error.message, true));
      const row = (pages.get(page) || [])[index % size];
      if (row) shown.push(rowOf(row)); else break;
    }
    heading(table.tHead, columns, sort, (next) => { sort = next; reset(); });
    table.tBodies[0].replaceChildren(
      space(first), ...shown, space(Math.max(0, total - first - shown.length)),
    );
  };
  // What is shown stays until the new rows are there.
  const reset = () => {
    version += 1;
    const page = Math.floor(place.scrollTop / ROW_PX / size);
    const kept = pages.get(page);
    pages = new Map(kept ? [[page, kept]] : []);
    load(page).catch((error) => say(error.message, true));
  };

  let isWaiting = false;
  place.onscroll = () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => { isWaiting = false; draw(); });
  };
  byId("state").onchange = reset;
  byId("text").oninput = reset;
  return (overview) => {
    columns = [
      { key: "number", title: "trial" }, { key: "state", title: "state" },
      { key: "value", title: overview.metric },
      ...overview.metrics.slice(0, 12).map((name) => ({ key: `metric:${name}`, title: name })),
      ...overview.params.slice(0, 30).map((name) => ({ key: `param:${name}`, title: name })),
      { key: "seconds", title: "time" }, { key: "attempts", title: "attempts" },
      { key: "error", title: "error" },
    ];
    const chosen = byId("state").value, states = Object.keys(overview.counts);
    const options = [element("option", { value: "" }, "all states"),
      ...states.map((state) => element("option", { value: state }, state.toLowerCase()))];
    byId("state").replaceChildren(...options);
    byId("state").value = states.includes(chosen) ? chosen : "";
    reset();
  };
};

// ---- the dialog with one trial and its log

const trialDialog = (id) => {
  const dialog = byId("trial"), log = byId("log");
  let number = null, offset = -1, known = "";

  const update = async () => {
    if (!dialog.open || !byId("follow").checked) return;
    const asked = number, name = byId("log-name").value;
    const query = new URLSearchParams({ name, offset });
    const answer = await ask(`${address(id, "trials", number, "log")}?${query}`);
    if (asked !== number || name !== byId("log-name").value) return;
    if (answer.names.join() !== known) {
      known = answer.names.join();
      byId("log-name").replaceChildren(...answer.names.map((each) => element("option", {}, each)));
      byId("log-name").value = answer.name;
    }
    if (answer.skipped) log.append(`... ${answer.skipped} bytes before ...\n`);
    const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
    log.append(answer.text);
    if (offset < 0 && !answer.text) log.textContent = "";
    offset = answer.offset;
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  };
  const restart = () => { offset = -1; log.textContent = ""; update().catch(() => {}); };
  byId("log-name").onchange = restart;
  byId("close").onclick = () => dialog.close();
  const open = (row) => {
    number = row.number;
    known = "";
    byId("log-name").replaceChildren();
    byId("trial-title").replaceChildren(`Trial ${row.number} `, stateCell(row.state));
    const pairs = [...Object.entries(row.params), ...Object.entries(row.metrics)];
    if (row.error) pairs.push(["error", row.error]);
    byId("trial-facts").replaceChildren(element("dl", {}, ...pairs.flatMap(([name, value]) =>
      [element("dt", {}, name), element("dd", {}, numberText(value))])));
    dialog.showModal();
    restart();
  };
  return { open, update };
};

// A figure fills its section, whose width changes when the next figure comes beside it.
const resizing = new ResizeObserver((entries) => {
  for (const { target } of entries) if (target.layout) Plotly.Plots.resize(target);
});

// ---- one run

const showRun = (id) => {
  byId("page").replaceChildren(byId("run-page").content.cloneNode(true));
  document.title = `${id} - sparkdl`;
  const dialog = trialDialog(id), showTrials = trialTable(id, dialog.open);
  let version = 0, busy = false, control = null;

  const progress = (counts) => {
    const total = Object.values(counts).reduce((a, b) => a + b, 0) || 1;
    const parts = Object.entries(counts);
    byId("progress").replaceChildren(...parts.map(([state, count]) => {
      const part = element("i", { title: `${count} ${state.toLowerCase()}` });
      part.style.width = `${(100 * count) / total}%`;
      part.style.background = COLORS[state];
      return part;
    }));
    byId("legend").replaceChildren(...parts.flatMap(([state, count]) => {
      const key = element("i", { className: "key" });
      key.style.background = COLORS[state];
      return [key, `${count} ${state.toLowerCase()}  `];
    }));
  };
  // The figures of a large run take a while: they are drawn one after the other, and again only
  // when the last drawing is over.
  const figures = async (names) => {
    if (busy) return;
    busy = true;
    try {
      for (const name of names) {
        const made = await ask(address(id, "figures", name));
        if (!byId("figures")) return;
        let place = byId(`figure-${name}`);
        if (made && !place) {
          const title = element("h2", {}, made.layout.title.text);
          place = element("div", { id: `figure-${name}`, className: "figure" });
          const section = element("section", {}, title, element("div", { className: "wide" }, place));
          byId("figures").append(section);
          resizing.observe(place);
        }
        if (made) drawFigure(place, made);
      }
    } finally {
      busy = false;
    }
  };
  const controls = (overview) => {
    const place = byId("controls");
    place.hidden = !control || overview.state !== "RUNNING";
    for (const button of place.children) {
      const { action } = button.dataset;
      button.hidden = action === (overview.is_paused ? "pause" : "unpause");
      button.onclick = async () => {
        if (action === "cancel" && !confirm("Cancel this run? Finished trials keep their results.")) return;
        button.disabled = true;
        try {
          await ask(address(id, "control"), {
            method: "POST", body: JSON.stringify({ action }),
            headers: { "Content-Type": "application/json" },
          });
        } catch (error) {
          say(error.message, true);
        } finally {
          button.disabled = false;
        }
      };
    }
  };
  const update = async () => {
    if (control === null) {
      const answer = await ask("api/runs");
      control = answer.control;
      byId("root").textContent = answer.root;
    }
    await dialog.update();
    const overview = await ask(`${address(id)}?version=${version}`);
    if (overview.version === version || !byId("head")) return;
    version = overview.version;
    for (const [name, text] of Object.entries(overview.sections)) {
      const open = [...byId(name).querySelectorAll("details")].map((each) => each.open);
      byId(name).innerHTML = text;  // The server has escaped all that comes from users.
      byId(name).querySelectorAll("details").forEach((each, i) => { each.open = open[i] || false; });
    }
    progress(overview.counts);
    controls(overview);
    showTrials(overview);
    figures(overview.figures).catch((error) => say(error.message, true));
  };
  return { update, pause_ms: POLL_MS };
};

// ---- which page is shown

let shown = 0;
const route = async () => {
  token = takeToken();
  const turn = (shown += 1);
  const [, kind, id] = location.hash.split("/");
  if (byId("trial").open) byId("trial").close();
  const page = kind === "run" && id ? showRun(decodeURIComponent(id)) : showRuns();
  while (turn === shown) {
    try {
      await page.update();
      say("");
    } catch (error) {
      say(error instanceof TypeError ? "the server does not answer" : error.message, true);
    }
    await new Promise((resolve) => { setTimeout(resolve, page.pause_ms); });
  }
};
addEventListener("hashchange", route);
route();
