// The page of `sparkdl ui`: which part is shown, by the address after "#".
import { takeToken } from "./server.js";
import { byId, say } from "./dom.js";
import { showCompare } from "./compare.js";
import { showModel, showModels } from "./models.js";
import { showRun } from "./run.js";
import { showRuns } from "./runs.js";

let page = null, shown = "", turn = 0;

const pageOf = (kind, rest) => {
  if (kind === "run" && rest[0]) return showRun(rest[0]);
  if (kind === "compare" && rest[0]) return showCompare(rest[0].split(",").map(decodeURIComponent));
  if (kind === "models" && rest[1]) return showModel(rest[0], Number(rest[1]));
  if (kind === "models") return showModels();
  return showRuns();
};

const visible = () => new Promise((done) => {
  if (!document.hidden) done();
  else document.addEventListener("visibilitychange", () => done(), { once: true });
});

const follow = async (mine) => {
  while (mine === turn) {
    const { pause_ms } = page;
    try {
      await page.update();
      if (mine === turn) say("");
    } catch (error) {
      const text = error instanceof TypeError ? `the server does not answer (${error.message})` : error.message;
      if (mine === turn) say(text, true);
    }
    await new Promise((resolve) => { setTimeout(resolve, pause_ms); });
    await visible();  // Nobody looks at a page in another tab.
  }
};

const route = (again = false) => {
  takeToken();
  const [, kind, ...parts] = location.hash.split("/");
  // The ids of a comparison are decoded one by one.
  const rest = kind === "compare" ? parts : parts.map(decodeURIComponent);
  const isTrial = kind === "run" && rest[1] === "trial";
  const place = JSON.stringify([kind, isTrial ? rest[0] : rest]);
  const key = isTrial ? JSON.stringify([kind, [rest[0]]]) : place;
  const isOther = key !== shown || again;
  if (isOther) {
    shown = key;
    if (byId("trial").open) byId("trial").close();
    byId("home").classList.toggle("here", !["models"].includes(kind));
    byId("to-models").classList.toggle("here", kind === "models");
    page = pageOf(kind, rest);
    scrollTo(0, 0);
  }
  page.at?.(isTrial ? Number(rest[2]) : null);
  if (isOther) follow(turn += 1);
  else page.update().catch((error) => say(error.message, true));
};

addEventListener("hashchange", () => route());
// The figures have the colours of the page.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => route(true));
route();
