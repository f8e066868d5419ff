// The models, their versions, and where each version comes from.
import { address, ask } from "./server.js";
import { byId, element, modelAddress, numberText, pairs, plainTable, runAddress, section, sizeText,
  trialAddress } from "./dom.js";

const timeOf = (text) => (text ? text.replace("T", " ").replace(/(\.\d+)?(\+0000|\+00:00|Z)$/, " UTC") : "");

const aliasCell = (aliases) => element("span", {},
  ...aliases.map((alias) => element("span", { className: "chip" }, alias)));

const runCell = (row) => (row.run
  ? element("a", { href: row.trial === null ? runAddress(row.run) : trialAddress(row.run, row.trial) },
    row.trial === null ? row.run : `${row.run}, trial ${row.trial}`) : "");

const versionTable = (rows) => {
  const metrics = [...new Set(rows.flatMap((row) => Object.keys(row.metrics)))].slice(0, 8);
  return plainTable(["version", "aliases", ...metrics, "run", "exported", "user"], rows.map((row) => [
    element("a", { href: modelAddress(row.model, row.version) }, String(row.version)),
    aliasCell(row.aliases), ...metrics.map((name) => row.metrics[name]), runCell(row),
    timeOf(row.time), row.user,
  ]));
};

export const showModels = () => {
  byId("page").replaceChildren(element("div", { id: "all-models" }));
  document.title = "Models - sparkdl";
  let version = "";
  const update = async () => {
    const answer = await ask(`${address("models")}?version=${version}`);
    if (answer.version === version || !byId("all-models")) return;
    version = answer.version;
    byId("root").textContent = answer.root;
    const names = [...new Set(answer.models.map((row) => row.model))];
    const parts = names.map((name) => section(name,
      versionTable(answer.models.filter((row) => row.model === name).reverse())));
    const none = section("Models", element("p", { className: "soft" },
      "There is no model yet: models.export(run.best, \"name\") writes the first version."));
    byId("all-models").replaceChildren(...(parts.length ? parts : [none]));
  };
  return { update, pause_ms: 3000 };
};

const FEATURES = ["name", "kind", "n", "nulls", "mean", "std", "min", "max", "num_distinct"];

const STATUS_CLASS = { drift: "window drift", ok: "window" };

// A mark for each of the last windows, the newest one at the right.
const windowMarks = (windows) => element("span", { className: "windows" }, ...windows.map((window) =>
  element("span", {
    className: STATUS_CLASS[window.status] || "window few",
    title: `${window.start}: ${window.status}, ${window.value}`,
  })));

const driftTable = (rows) => plainTable(
  ["feature", "role", "metric", "version", "value", "threshold", "rows", "status", "last windows"],
  rows.map((row) => [row.feature, row.role, row.metric, row.version, row.value, row.threshold, row.rows,
    row.status, windowMarks(row.windows)]));

const performanceTable = (rows) => plainTable(
  ["window", "metric", "version", "value", "requests", "labelled"],
  rows.map((row) => [row.window, row.metric, row.version, row.value, row.requests, row.labelled]));

const leftOutTable = (rows) => plainTable(["reason", "lines", "example"],
  rows.map((row) => [row.reason, row.num, row.example]));

export const showModel = (name, number) => {
  byId("page").replaceChildren(element("div", { id: "model" }));
  document.title = `${name}/${number} - sparkdl`;
  const tensors = (of) => Object.entries(of || {}).map(([tensor, { dtype, shape }]) =>
    `${tensor}: ${dtype} [${(shape || []).map((size) => size ?? "any").join(", ")}]`).join(", ");
  const update = async () => {
    const model = await ask(address("models", name, String(number)));
    if (!byId("model")) return;
    byId("root").textContent = model.root;
    const { signature } = model;
    const lineage = Object.fromEntries(Object.entries(model.lineage)
      .map(([key, value]) => [key.replaceAll("_", " "), value]));
    const parts = [
      element("header", {}, element("h1", {}, `${model.model}/${model.version} `, aliasCell(model.aliases)),
        element("p", { className: "soft" }, `exported ${timeOf(model.time)} by ${model.user || "unknown"}, ${model.path}`)),
      section("Metrics", pairs(model.metrics)),
      section("Comes from", pairs({ ...(model.run ? { run: runCell(model) } : {}), ...lineage })),
      ...(Object.keys(model.params).length ? [section("Parameters", pairs(model.params))] : []),
      section("Signature", pairs({ inputs: tensors(signature.inputs), outputs: tensors(signature.outputs) })),
      ...(model.moves.length ? [section("Aliases over time", plainTable(
        ["alias", "version", "time", "user", "host"],
        model.moves.map((move) => [move.alias, move.version ?? "removed", timeOf(move.time), move.user, move.host])))] : []),
      ...(model.features.length ? [section("Features of the training data", plainTable(FEATURES,
        model.features.map((feature) => FEATURES.map((key) => feature[key]))))] : []),
      ...(model.drift.length ? [section("Drift of its requests", driftTable(model.drift))] : []),
      ...(model.performance.length
        ? [section("Performance on its requests", performanceTable(model.performance))] : []),
      ...(model.left_out.length
        ? [section("Lines of the log that were left out", leftOutTable(model.left_out))] : []),
      section("Files", plainTable(["file", "size"],
        Object.entries(model.files).map(([file, bytes]) => [file, sizeText(bytes)]))),
    ];
    byId("model").replaceChildren(...parts);
  };
  return { update, pause_ms: 10000 };
};
