// The commands to a run, for a page that may change runs. Each waits for the driver's answer.
import { address, tell } from "./server.js";
import { byId, confirmed, element, numberText } from "./dom.js";

const WORDS = new Map([["True", "true"], ["False", "false"], ["None", "null"]]);

// What the user has typed as JSON. A number stays as it was typed: to a browser, 1.0 is the whole
// number 1, and of 20 digits it forgets some.
const jsonOf = (text) => {
  try {
    JSON.parse(text);
    return text;
  } catch {
    return WORDS.get(text) ?? JSON.stringify(text);
  }
};

const field = (label, attributes = {}) => {
  const input = element("input", { autocomplete: "off", ...attributes });
  return [element("label", {}, `${label} `, input), input];
};

export const controls = (id, done) => {
  const place = byId("controls");
  let answer = null, names = null, fields = [], chips = null;

  const order = async (content, buttons) => {
    for (const button of buttons) button.disabled = true;
    answer.textContent = "waiting for the driver ...";
    answer.classList.remove("problem");
    try {
      await tell(address("runs", id, "control"), content);
      answer.textContent = "done";
      await done();
      return true;
    } catch (error) {
      answer.textContent = error.message;
      answer.classList.add("problem");
      return false;
    } finally {
      for (const button of buttons) button.disabled = false;
    }
  };
  const button = (text, content) => {
    const made = element("button", { type: "button" }, text);
    made.onclick = () => order(content(), [made]);
    return made;
  };
  const form = (title, parts, text, content) => {
    const send = element("button", {}, text);
    const made = element("form", {}, ...parts, send);
    made.onsubmit = async (event) => {
      event.preventDefault();
      const values = content();
      if (values && await order(values, [send])) made.reset();
    };
    return element("details", {}, element("summary", {}, title), made);
  };

  const limits = () => {
    const [parallel, parallelism] = field("trials at once", { type: "number", min: 1 });
    const [number, num_trials] = field("trials in all", { type: "number", min: 1 });
    const [time, timeout_s] = field("seconds in all", { type: "number", min: 1 });
    return form("Change limits", [parallel, number, time], "Change", () => {
      const all = { parallelism, num_trials, timeout_s };
      const values = Object.entries(all).filter(([, input]) => input.value)
        .map(([name, input]) => [name, Number(input.value)]);
      return values.length ? { action: "set", values: Object.fromEntries(values) } : null;
    });
  };
  const trial = () => {
    const made = names.map((name) => [name, ...field(name)]);
    fields = made.map(([name, , input]) => [name, input]);
    return form("Add a trial", made.map(([, label]) => label), "Add", () => {
      const values = fields.filter(([, input]) => input.value.trim())
        .map(([name, input]) => `${JSON.stringify(name)}: ${jsonOf(input.value.trim())}`);
      return `{"action": "enqueue", "params": {${values.join(", ")}}}`;
    });
  };
  const tags = () => {
    const [label, input] = field("tag");
    chips = element("span");
    return form("Tags", [chips, label], "Add", () =>
      (input.value.trim() ? { action: "tag", tags: [input.value.trim()] } : null));
  };
  const chipOf = (tag) => {
    const remove = element("button", { type: "button", className: "chip", title: `Remove ${tag}` }, `${tag} \u00d7`);
    remove.onclick = () => order({ action: "untag", tags: [tag] }, [remove]);
    return remove;
  };
  const note = () => {
    const [label, input] = field("note", { size: 40 });
    return form("Note", [label], "Write", () =>
      (input.value.trim() ? { action: "note", text: input.value.trim() } : null));
  };
  const draw = (overview) => {
    answer = element("p", { className: "soft", role: "status" });
    const pause = button("Pause", () => ({ action: "pause" }));
    const unpause = button("Continue", () => ({ action: "unpause" }));
    const cancel = element("button", { type: "button", className: "danger" }, "Cancel the run");
    cancel.onclick = async () => {
      const question = "Cancel this run? Trials that have ended keep their results.";
      if (await confirmed(question, "Cancel the run")) order({ action: "cancel" }, [cancel]);
    };
    pause.id = "pause";
    unpause.id = "unpause";
    const live = element("div", { className: "bar", id: "live-controls" }, pause, unpause, cancel);
    const forms = [limits(), ...(overview.is_distributed ? [] : [trial()])];
    const more = element("div", { id: "live-forms" }, ...forms);
    place.replaceChildren(live, more, tags(), note(), answer);
  };
  return (overview) => {
    place.hidden = !overview.control;
    if (!overview.control) return;
    // What the user has typed stays, unless the parameters are others.
    if (names === null || names.join() !== overview.params.join()) {
      names = overview.params;
      draw(overview);
    }
    for (const [name, input] of fields) input.placeholder = numberText(overview.best[name]);
    chips.replaceChildren(...overview.tags.map(chipOf));
    const isLive = overview.state === "RUNNING";
    byId("live-controls").hidden = byId("live-forms").hidden = !isLive;
    byId("pause").hidden = overview.is_paused;
    byId("unpause").hidden = !overview.is_paused;
  };
};
