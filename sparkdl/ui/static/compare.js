// Several runs over one another.
import { address, ask } from "./server.js";
import { byId, element, numberText, runAddress, section, stateCell } from "./dom.js";
import { figureLoop } from "./plots.js";

const TITLES = {
  result: "Results", metrics: "Metrics of the best trial", parameters: "Parameters of the best trial",
  tried: "Values in all trials", environment: "Environment", packages: "Packages",
};

const addressOf = (ids) => `#/compare/${ids.map(encodeURIComponent).join(",")}`;

export const showCompare = (ids) => {
  byId("page").replaceChildren(byId("compare-page").content.cloneNode(true));
  document.title = "Comparison - sparkdl";
  const query = ids.map((id) => `run=${encodeURIComponent(id)}`).join("&");
  const showFigures = figureLoop(
    byId("figures"), (name) => ask(`${address("compare", "figures", name)}?${query}`),
  );
  let version = "", drawn = "", names = [], direction = null;

  const headCell = (id, { states, folders }) => {
    const rest = ids.filter((other) => other !== folders[id]);
    const cell = element("th", { scope: "col" },
      element("a", { href: runAddress(folders[id]) }, id), element("br"), stateCell(states[id]));
    if (rest.length > 1) {
      cell.append(" ", element("a", { href: addressOf(rest), className: "remove", title: `Leave out ${id}` }, "\u00d7"));
    }
    return cell;
  };
  const groupRows = (group, rows, shown) => {
    const numbers = Object.values(rows["best value"] || {}).filter(Number.isFinite);
    const best = direction === "max" ? Math.max(...numbers) : direction === "min" ? Math.min(...numbers) : null;
    const title = element("tr", { className: "group" },
      element("th", { colSpan: shown.length + 1, scope: "colgroup" }, TITLES[group] || group));
    return [title, ...Object.entries(rows).map(([name, values]) => element("tr", {},
      element("th", { scope: "row" }, name),
      ...shown.map((id) => {
        const value = values[id];
        const text = typeof value === "object" && value ? JSON.stringify(value) : numberText(value);
        const isBest = name === "best value" && value !== null && value === best;
        return element("td", { title: text.length > 30 ? text : "", className: isBest ? "best" : "" }, text);
      })))];
  };
  const tableOf = (groups, shown, answer) => element("div", { className: "wide" },
    element("table", { className: "compared" },
      element("thead", {}, element("tr", {}, element("th"), ...shown.map((id) => headCell(id, answer)))),
      element("tbody", {}, ...groups.flatMap(([group, rows]) => groupRows(group, rows, shown)))));

  const update = async () => {
    const answer = await ask(`${address("compare")}?${query}&version=${encodeURIComponent(version)}`);
    if (!byId("differences")) return;
    if (answer.version !== version) {
      version = answer.version;
      byId("root").textContent = answer.root;
      names = answer.figures;
      direction = answer.direction;
      const shown = answer.runs.map((run) => run.id);
      const groups = Object.entries(answer.differences);
      const main = groups.filter(([group]) => group !== "packages");
      const packages = groups.filter(([group]) => group === "packages");
      const same = answer.same.length ? `The same in all: ${answer.same.join(", ")}.` : "";
      const parts = [section("What differs", tableOf(main, shown, answer),
        element("p", { className: "soft" }, same))];
      if (packages.length) {
        const count = Object.keys(packages[0][1]).length;
        parts.push(element("section", {}, element("details", {},
          element("summary", {}, `${count} packages differ`),
          tableOf(packages, shown, answer))));
      }
      byId("differences").replaceChildren(...parts);
      drawn = "";
    }
    if (drawn !== version) {
      const now = version;
      if (await showFigures(names)) drawn = now;
    }
  };
  return { update, pause_ms: 2000 };
};
