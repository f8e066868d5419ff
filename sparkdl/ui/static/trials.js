// The table of the trials of a run. The server sorts, and sends the parts that are looked at.
import { address, ask } from "./server.js";
import { byId, durationText, element, later, numberText, say, stateCell, trialAddress }
  from "./dom.js";
import { longTable, ROW_PX } from "./table.js";

export const trialTable = (id) => {
  let sort = { key: "number", descending: false }, columns = [];
  let pages = new Map(), total = 0, size = 200, turn = 0, known = "";

  const cells = {
    number: (row) => `${row.number}${row.is_best ? " *" : ""}`,
    state: (row) => stateCell(row.state),
    value: (row) => numberText(row.value),
    duration: (row) => durationText(row.duration),
    training: (row) => durationText(row.training),
  };
  const cellOf = (row, key) => {
    const [kind, name] = [key.split(":")[0], key.slice(key.indexOf(":") + 1)];
    if (kind === "param") return numberText(row.params[name]);
    if (kind === "metric") return numberText(row.metrics[name]);
    return cells[key] ? cells[key](row) : numberText(row[key]);
  };
  const load = async (number) => {
    const asked = turn;
    if (!pages.has(number)) pages.set(number, []);
    const query = new URLSearchParams({
      offset: number * size, sort: sort.key, descending: sort.descending,
      state: byId("state").value, text: byId("text").value,
    });
    const answer = await ask(`${address("runs", id, "trials")}?${query}`);
    if (asked !== turn || !byId("total")) return;
    pages.set(number, answer.rows);
    total = answer.total;
    size = answer.size;
    byId("total").textContent = `${total} trial${total === 1 ? "" : "s"}`;
    for (const column of columns.filter(({ key }) => key.startsWith("param:"))) {
      column.isText = answer.rows.some((row) => typeof row.params[column.title] === "string");
    }
    table.show([...columns], sort, total);
  };
  const rowAt = (index) => {
    const number = Math.floor(index / size);
    if (!pages.has(number)) load(number).catch((error) => say(error.message, true));
    return pages.get(number)?.[index % size];
  };
  const reset = () => {
    turn += 1;
    const number = Math.floor(byId("trial-rows").scrollTop / ROW_PX / size);
    const before = pages.get(number);  // What is shown stays until the new rows are there.
    pages = new Map(before ? [[number, before]] : []);
    load(number).catch((error) => say(error.message, true));
  };
  const table = longTable(byId("trial-rows"), {
    rowAt, cellOf,
    hrefOf: (row) => trialAddress(id, row.number),
    classOf: (row) => (row.is_best ? "best" : ""),
    choose: (next) => { sort = next; table.show(columns, sort, total); begin(); },
  });
  const begin = () => { byId("trial-rows").scrollTop = 0; reset(); };
  byId("state").onchange = begin;
  byId("text").oninput = later(begin, 200);

  return (overview) => {
    columns = [
      { key: "number", title: "trial" }, { key: "state", title: "state", isText: true },
      { key: "value", title: overview.metric },
      ...overview.metrics.slice(0, 12).map((name) => ({ key: `metric:${name}`, title: name })),
      ...overview.params.slice(0, 30).map((name) => ({ key: `param:${name}`, title: name })),
      { key: "duration", title: "duration" }, { key: "training", title: "training" },
      { key: "attempts", title: "attempts" },
      { key: "error", title: "error or note", isText: true },
    ];
    const chosen = byId("state").value, states = Object.keys(overview.counts);
    if (states.join() !== known) {
      known = states.join();
      byId("state").replaceChildren(element("option", { value: "" }, "all states"),
        ...states.map((state) => element("option", { value: state }, state.toLowerCase())));
      byId("state").value = states.includes(chosen) ? chosen : "";
    }
    reset();
  };
};
