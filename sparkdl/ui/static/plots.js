// Figures. The library is large: it is loaded when the first figure is drawn, after the texts.
import { element } from "./dom.js";

let library = null;

const loaded = () => {
  library ??= new Promise((done, failed) => {
    const script = element("script", { src: "plotly.js" });
    script.onload = done;
    script.onerror = () => { library = null; failed(new Error("plotly.js cannot be loaded")); };
    document.head.append(script);
  });
  return library;
};

// A figure fills its section, whose width changes when the next figure comes beside it.
const resizing = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.layout && target.isConnected) Plotly.Plots.resize(target);
  }
});

// Draw a figure in a section of `place`, which has its name, or draw it there again. A click on a
// trial calls `open` with its number.
export const draw = async (place, name, figure, open) => {
  const id = `figure-${name}`;
  if (!figure) return;
  await loaded();
  let box = place.querySelector(`#${id}`);
  const { text, subtitle } = figure.layout.title;
  if (!box) {
    box = element("div", { id, className: "figure" });
    place.append(element("section", {}, element("h2"), element("p", { className: "soft note" }),
      element("div", { className: "wide" }, box)));
    resizing.observe(box);
  }
  const [title, note] = box.closest("section").children;
  title.innerHTML = text;  // The server has escaped the names of users in it.
  note.innerHTML = subtitle?.text || "";
  note.hidden = !note.textContent;
  await drawFigure(box, figure);
  if (open && !box.hasClick && box.on) {
    box.hasClick = true;
    box.on("plotly_click", ({ points: [point] }) => {
      const label = String(point.text ?? point.data.text ?? "");
      const [, number] = label.match(/^<b>trial (\d+)<\/b>/) || [];
      if (number !== undefined) open(Number(number));
    });
  }
};

// Return a function that draws figures again, and returns true if it has. As a large run takes a while
// to draw, there is a pause before the figures are drawn again, unless it is for the last time.
export const figureLoop = (place, ask, open) => {
  let busy = false, next_ms = 0;
  return async (names, isLast = false) => {
    if (busy || (performance.now() < next_ms && !isLast)) return false;
    busy = true;
    await loaded().catch(() => {});
    const begun_ms = performance.now();
    const problems = [];
    try {
      for (const name of names) {
        try {
          const figure = await ask(name);
          if (!place.isConnected) break;
          await draw(place, name, figure, open);
        } catch (error) {
          problems.push(`${name}: ${error.message}`);  // The other figures are drawn.
        }
      }
      if (problems.length) throw new Error(problems.join("; "));
      return true;
    } finally {
      const now_ms = performance.now();
      next_ms = now_ms + Math.min(20_000, Math.max(1500, 3 * (now_ms - begun_ms)));
      busy = false;
    }
  };
};
