// The dialog with one trial: its facts, its curves, its traceback and its logs.
import { address, ask, tell } from "./server.js";
import { byId, confirmed, durationText, element, pairs, runAddress, section, stateCell, timeText }
  from "./dom.js";
import { draw } from "./plots.js";

const MAX_LOG = 1_000_000;

// Colours of a terminal are left out, and of a line that was written again the last state stays.
const cleaned = (text) => text
  .replace(/\x08+/g, "\r")
  .replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "")
  .replace(/[^\n]*\r(?!\n)(?=[^\n])/g, "");

export const trialDialog = (id) => {
  const dialog = byId("trial"), log = byId("log");
  let number = null, offset = -1, version = "", names = "", canControl = false, attempts = 0;

  const place = () => address("runs", id, "trials", String(number));
  const facts = (trial) => {
    byId("trial-title").replaceChildren(`Trial ${trial.number} `, stateCell(trial.state),
      trial.is_best ? " best" : "");
    const { params, usage } = trial;
    // A plain number is reported as "value", and counts as the metric.
    const { value, ...others } = trial.metrics;
    const isNamed = trial.metric in trial.metrics;
    const metrics = isNamed ? trial.metrics : { [trial.metric]: trial.value, ...others };
    const outputs = Object.entries(trial.outputs).filter(([name]) => !(name in metrics));
    const about = {
      started: timeText(trial.started), duration: durationText(trial.duration),
      ...(usage.running_s ? { training: durationText(usage.running_s) } : {}),
      ...(usage.queued_s ? { waiting: durationText(usage.queued_s) } : {}),
      attempts: trial.attempts, seed: trial.seed,
      ...(usage.cpu_s ? { "CPU": durationText(usage.cpu_s) } : {}),
      ...(usage.peak_memory_mb ? { "peak memory": `${Math.round(usage.peak_memory_mb)} MiB` } : {}),
      folder: trial.path,
    };
    const parts = [
      ["Parameters", params], ["Values", metrics],
      ["Outputs", Object.fromEntries(outputs)], ["Trial", about],
    ];
    byId("trial-facts").replaceChildren(...parts.filter(([, values]) => Object.keys(values).length)
      .map(([title, values]) => element("div", {}, element("h3", {}, title), pairs(values))));
    const texts = [trial.error, trial.note].filter(Boolean);
    byId("trial-error").replaceChildren(...texts.map((text) => element("pre", {}, text)));
    const isLive = ["RUNNING", "WAITING", "PAUSED"].includes(trial.state);
    byId("cancel-trial").hidden = !(canControl && isLive);
  };
  const follow = async () => {
    const asked = number, name = byId("log-name").value;
    const answer = await ask(`${place()}/log?${new URLSearchParams({ name, offset })}`);
    if (asked !== number || name !== byId("log-name").value) return;
    if (answer.names.join() !== names) {
      names = answer.names.join();
      byId("log-name").replaceChildren(...answer.names.map((each) => element("option", {}, each)));
      byId("log-name").value = answer.name;
    }
    byId("log-bar").hidden = log.hidden = !answer.names.length;
    const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
    if (answer.is_new) log.replaceChildren();
    if (answer.is_new && answer.skipped) log.append(`... ${answer.skipped} bytes before ...\n`);
    if (answer.text) log.append(cleaned(answer.text));
    while (log.textContent.length > MAX_LOG && log.childNodes.length > 1) log.firstChild.remove();
    offset = answer.offset;
    if (isAtEnd || answer.is_new) log.scrollTop = log.scrollHeight;
  };
  const look = async () => {
    if (number === null) return;
    const asked = number;
    const trial = await ask(place());
    if (asked !== number) return;
    if (trial.version !== version) {
      version = trial.version;
      if (attempts !== trial.attempts) offset = -1;  // The next attempt begins another log.
      attempts = trial.attempts;
      facts(trial);
      const figure = await ask(`${place()}/curves`);
      if (asked !== number) return;
      if (figure) {
        figure.layout.height = 340;
        await draw(byId("trial-curves"), "trial", figure);
      }
    }
    if (byId("follow").checked || offset < 0) await follow();
  };
  // One look after the other, so that no part of a log is added twice.
  let looking = Promise.resolve();
  const update = () => {
    looking = looking.catch(() => {}).then(look);
    return looking;
  };
  byId("log-name").onchange = () => { offset = -1; update().catch(() => {}); };
  byId("close").onclick = () => dialog.close();
  dialog.onclose = () => {
    if (number !== null && location.hash.includes("/trial/")) location.hash = runAddress(id);
  };
  byId("cancel-trial").onclick = async () => {
    if (!await confirmed(`Cancel trial ${number}?`, "Cancel the trial")) return;
    try {
      await tell(address("runs", id, "control"), { action: "cancel", trial: number });
      byId("trial-problem").textContent = "";
    } catch (error) {
      byId("trial-problem").textContent = error.message;
    }
  };
  const open = (next, control) => {
    canControl = control;
    if (next === number) return;
    number = next;
    if (number === null) {
      dialog.close();
      return;
    }
    offset = -1;
    version = names = "";
    for (const name of ["trial-facts", "trial-error", "trial-curves", "log", "log-name"]) {
      byId(name).replaceChildren();
    }
    byId("trial-problem").textContent = "";
    byId("trial-title").textContent = `Trial ${number}`;
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };
  return { open, update };
};
