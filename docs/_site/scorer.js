// The order of search results. Three words and more are a part of an error message: the page of
// messages comes first then. The other numbers are those of Sphinx.
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const isMessage = query.trim().split(/\s+/).length > 2;
    return isMessage && page === "docs/troubleshooting" ? score + 50 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
