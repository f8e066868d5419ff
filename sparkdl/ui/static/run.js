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

export const showRun = (id) => {
  byId("page").replaceChildren(byId("run-page").content.cloneNode(true));
  document.title = `${id} - sparkdl`;
  let version = "", control = false;
  const openTrial = (number) => { location.hash = trialAddress(id, number); };
  const dialog = trialDialog(id), showTrials = trialTable(id);
  const showFigures = figureLoop(
    byId("figures"), (name) => ask(address("runs", id, "figures", name)), openTrial,
  );
  let names = [];

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
  const texts = (sections) => {
    for (const [name, text] of Object.entries(sections)) {
      const place = byId(name);
      if (place.shown === text) continue;  // What the user has opened or selected stays.
      const open = [...place.querySelectorAll("details")].map((each) => each.open);
      place.shown = text;
      place.innerHTML = text;  // The server has escaped all that comes from users.
      place.querySelectorAll("details").forEach((each, i) => { each.open = open[i] || false; });
    }
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
    if (!byId("head")) return;
    if (overview.version !== version) {
      version = overview.version;
      control = overview.control;
      names = overview.figures;
      isOver = overview.state !== "RUNNING";
      byId("root").textContent = overview.root;
      texts(overview.sections);
      origin(overview.reproduces);
      progress(overview);
      models(overview.models);
      showControls(overview);
      showTrials(overview);
      if (trial !== null) dialog.open(trial, control);
      drawn = "";
    }
    await dialog.update();
    if (drawn !== version) {
      const now = version;
      showFigures(names, isOver).then((done) => { if (done) drawn = now; })
        .catch((error) => say(error.message, true));
    }
  };
  let trial = null, drawn = "", isOver = false;
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
