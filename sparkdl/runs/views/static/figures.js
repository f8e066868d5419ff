// Draw plotly figures in the colours of the page. Used by report.html and by `sparkdl ui`.

const css = getComputedStyle(document.documentElement);
const color = (name) => css.getPropertyValue(name).trim();

// Colours that a dark page has in a lighter shade.
const DARK = { "#0072b2": "--complete", "#000000": "--ink" };

const drawFigure = (place, { data: traces, layout }) => {
  delete layout.title;
  layout.margin.t -= 60;  // The page has its own heading.
  layout.height -= 60;
  layout.uirevision = "same";  // A figure that is drawn again stays zoomed.
  place.style.height = `${layout.height}px`;  // It stays so when the width changes.
  Object.assign(layout, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" });
  layout.font.color = color("--ink");
  layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: color("--line") };
  layout.hoverlabel.bgcolor = color("--card");
  layout.hoverlabel.font = { color: color("--ink") };
  for (const axis of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
    Object.assign(layout[axis], { gridcolor: color("--line"), linecolor: color("--line") });
  }
  for (const trace of traces.filter((trace) => trace.type === "parcoords")) {
    trace.line.colorscale[0][1] = color("--faint");
    place.style.minWidth = `${100 * trace.dimensions.length}px`;
  }
  for (const look of traces.flatMap(({ line, marker }) => [line, marker])) {
    if (look?.color in DARK) look.color = color(DARK[look.color]);
  }
  const bar = innerWidth < 700 ? false : "hover";
  const config = { responsive: true, displaylogo: false, displayModeBar: bar };
  return Plotly.react(place, traces, layout, config).catch((error) => {
    place.textContent = `This browser could not draw the figure: ${error}`;
  });
};
