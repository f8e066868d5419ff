// One run, while it goes on.
import { address, ask } from "./server.js";
import { byId, COLORS, element, modelAddress, numberText, plainTable, runAddress, say, section,
  trialAddress } from "./dom.js";
import { controls } from "./controls.js";
import { figureLoop } from "./plots.js";
import { trialDialog } from "./trial.js";
import { trialTable } from "./trials.js";

const metricsText = (metrics) => Object.entries(metrics)
  .map(([name, value]) => `${name} ${numberText(value)}`).join(", ");

// Sections of files beside the journal, such as images, are read again so often while a run goes on.
const PARTS_PAUSE_MS = 20_000;

const showText = (name, text) => {
  const place = byId(name);
  if (place.shown === text) return;  // What the user has opened or selected stays.
  const open = [...place.querySelectorAll("details")].map((each) => each.open);
  place.shown = text;
  place.innerHTML = text;  // The server has escaped all that comes from users.
  place.querySelectorAll("details").forEach((each, i) => { each.open = open[i] ?? each.open; });
};

// Return a function that shows the sections of files again, and returns true if it has.
const partsLoop = (id, head) => {
  const versions = {};
  let busy = false, next_ms = 0;
  return async (names, isLast) => {
    if (busy || (performance.now() < next_ms && !isLast)) return false;
    busy = true;
    try {
      for (const name of names) {
        const url = `${address("runs", id, "parts", name)}?version=${versions[name] || ""}`;
        const { version, text } = await ask(url);
        if (!head.isConnected) return false;  // Another page is shown now.
        if (version !== versions[name]) showText(name, text);
        versions[name] = version;
      }
      return true;
    } finally {
      next_ms = performance.now() + PARTS_PAUSE_MS;
      busy = false;
    }
  };
};

export const showRun = (id) => {
  byId("page").replaceChildren(byId("run-page").content.cloneNode(true));
  document.title = `${id} - sparkdl`;
  const head = byId("head");
  let version = "", control = false;
  const openTrial = (number) => { location.hash = trialAddress(id, number); };
  const dialog = trialDialog(id), showTrials = trialTable(id);
  const showFigures = figureLoop(
    byId("figures"), (name) => ask(address("runs", id, "figures", name)), openTrial,
  );
  const showParts = partsLoop(id, head);
  let names = [], parts = [];

  const progress = ({ counts, num_to_come }) => {
    const total = Object.values(counts).reduce((a, b) => a + b, num_to_come) || 1;
    const order = Object.keys(COLORS);
    const parts = Object.entries(counts).sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
    byId("progress").replaceChildren(...parts.map(([state, count]) => {
      const part = element("i", { title: `${count} ${state.toLowerCase()}` });
      part.style.width = `${(100 * count) / total}%`;
      part.style.background = COLORS[state];
      return part;
    }));
    const more = num_to_come ? [element("span", {}, `${num_to_come} to come`)] : [];
    byId("legend").replaceChildren(...[...parts.map(([state, count]) => {
      const key = element("i", { className: "key" });
      key.style.background = COLORS[state];
      return element("span", {}, key, `${count} ${state.toLowerCase()}`);
    }), ...more]);
  };
  const models = (versions) => {
    byId("models").replaceChildren(...(versions.length ? [section("Models of this run",
      plainTable(["model", "aliases", "trial", "metrics"], versions.map((each) => [
        element("a", { href: modelAddress(each.model, each.version) }, `${each.model}/${each.version}`),
        each.aliases.join(", "), each.trial, metricsText(each.metrics),
      ])))] : []));
  };
  const origin = (reproduces) => {
    byId("origin").hidden = !reproduces;
    byId("origin").replaceChildren("reproduces ",
      element("a", { href: runAddress(reproduces || "") }, reproduces || ""));
  };
  const update = async () => {
    const overview = await ask(`${address("runs", id)}?version=${version}`);
    if (!head.isConnected) return;  // Another page is shown now.
    if (overview.version !== version) {
      version = overview.version;
      control = overview.control;
      ({ figures: names, parts } = overview);
      isOver = overview.state !== "RUNNING";
      byId("root").textContent = overview.root;
      for (const [name, text] of Object.entries(overview.sections)) showText(name, text);
      origin(overview.reproduces);
      progress(overview);
      models(overview.models);
      showControls(overview);
      showTrials(overview);
      if (trial !== null) dialog.open(trial, control);
      drawn = read = "";
    }
    await dialog.update();
    if (drawn !== version) {
      const now = version;
      showFigures(names, isOver).then((done) => { if (done) drawn = now; })
        .catch((error) => say(error.message, true));
    }
    if (read !== version) {
      const now = version;
      showParts(parts, isOver).then((done) => { if (done) read = now; })
        .catch((error) => say(error.message, true));
    }
  };
  let trial = null, drawn = "", read = "", isOver = false;
  const showControls = controls(id, update);
  return {
    update,
    pause_ms: 1000,
    // The number of the trial in the address.
    at: (number) => {
      trial = number;
      if (version || number === null) dialog.open(number, control);
    },
  };
};
