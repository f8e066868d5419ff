// The list of runs.
import { ask } from "./server.js";
import { byId, durationText, element, numberText, runAddress, sortedRows, stateCell, timeText }
  from "./dom.js";
import { longTable } from "./table.js";

const COLUMNS = [
  { key: "check", title: "", label: "Choose for a comparison" },
  { key: "run", title: "run", isText: true }, { key: "state", title: "state", isText: true },
  { key: "best", title: "best" }, { key: "metric", title: "metric", isText: true },
  { key: "trials", title: "trials" }, { key: "FAILED", title: "failed" },
  { key: "started", title: "started" }, { key: "seconds", title: "duration" },
  { key: "kind", title: "kind", isText: true }, { key: "user", title: "user", isText: true },
  { key: "tags", title: "tags", isText: true }, { key: "note", title: "note", isText: true },
];

// A phone shows the first columns.
const narrow = matchMedia("(max-width: 700px)");
const ORDER = ["check", "run", "best"];
const place = ({ key }) => (ORDER.includes(key) ? ORDER.indexOf(key) : ORDER.length);
const columnsNow = () => (narrow.matches ? [...COLUMNS].sort((a, b) => place(a) - place(b)) : COLUMNS);

// The runs that were chosen stay so while the user looks at one of them.
const chosen = new Set();

const textOf = (row) => {
  const values = Object.entries(row).map(([name, value]) => {
    const short = name.replace(/^(param|metric)\./, "");
    return short === name ? String(value ?? "") : `${short}=${value}`;
  });
  return values.join(" ").toLowerCase();
};

const sortValue = (row, key) => (key === "tags" ? row.tags.join(" ") || null : row[key]);

export const showRuns = () => {
  byId("page").replaceChildren(byId("runs-page").content.cloneNode(true));
  document.title = "sparkdl";
  let all = [], rows = [], sort = { key: "started", descending: true }, version = "";

  const showChosen = () => {
    const known = new Set(all.map((row) => row.folder));
    for (const id of chosen) if (!known.has(id)) chosen.delete(id);
    byId("compare").textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
    byId("compare").disabled = chosen.size < 2;
  };
  const check = (row) => {
    const box = element("input", {
      type: "checkbox", checked: chosen.has(row.folder), "aria-label": `Compare ${row.folder}`,
    });
    box.onchange = () => {
      if (box.checked) chosen.add(row.folder); else chosen.delete(row.folder);
      showChosen();
    };
    return box;
  };
  const cells = {
    check,
    run: (row) => element("a", { href: runAddress(row.folder) }, row.folder),
    state: (row) => stateCell(row.state),
    started: (row) => timeText(row.started),
    seconds: (row) => durationText(row.seconds),
    trials: (row) => (row.COMPLETE < row.trials ? `${row.COMPLETE} of ${row.trials}` : `${row.trials}`),
    FAILED: (row) => (row.FAILED ? String(row.FAILED) : ""),
    tags: (row) => row.tags.join(", "),
  };
  const table = longTable(byId("rows"), {
    rowAt: (index) => rows[index],
    cellOf: (row, key) => (cells[key] ? cells[key](row) : numberText(row[key])),
    hrefOf: (row) => runAddress(row.folder),
    choose: (next) => { sort = next; draw(); },
  });
  const draw = () => {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const matching = all.filter((row) => words.every((word) => textOf(row).includes(word)));
    rows = sortedRows(matching, (row) => sortValue(row, sort.key), sort.descending);
    const isUsed = ({ key }) => !["tags", "note", "FAILED", "user"].includes(key)
      || all.some((row) => sortValue(row, key));
    table.show(columnsNow().filter(isUsed), sort, rows.length);
    byId("total").textContent = rows.length < all.length ? `${rows.length} of ${all.length}` : "";
    byId("none").hidden = all.length > 0;
    showChosen();
  };
  byId("filter").oninput = draw;
  byId("compare").onclick = () => {
    location.hash = `#/compare/${[...chosen].map(encodeURIComponent).join(",")}`;
  };
  const update = async () => {
    const answer = await ask(`api/runs?version=${version}`);
    if (answer.version === version) return;
    version = answer.version;
    all = answer.runs;
    byId("root").textContent = answer.root;
    const lost = Object.entries(answer.unreadable);
    byId("unreadable").hidden = !lost.length;
    byId("unreadable").textContent = lost.length
      ? `${lost.length} folders cannot be read, such as ${lost[0].join(": ")}` : "";
    draw();
  };
  return { update, pause_ms: 2000 };
};
