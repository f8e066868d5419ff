// A table of any length: only the rows that are seen are in the page.
import { element } from "./dom.js";

export const ROW_PX = 30;
const MORE_ROWS = 15;  // Rows above and below those that are seen.

// `place` scrolls. `rowAt` returns the row with an index, or undefined while it is not known.
// `cellOf` returns the content of a cell, and `open` is called with a row that was chosen.
export const longTable = (place, { rowAt, cellOf, open, hrefOf, choose, classOf = () => "" }) => {
  const head = element("thead"), body = element("tbody");
  place.classList.add("rows");
  place.replaceChildren(element("table", { className: "list" }, head, body));
  let columns = [], sort = {}, total = 0;

  const drawHead = () => {
    const cells = columns.map(({ key, title, label, isText }) => {
      const cell = element("th", { scope: "col", className: isText ? "text" : "" }, title);
      if (label) cell.setAttribute("aria-label", label);
      if (label) return cell;
      const isSorted = sort.key === key;
      if (isSorted) cell.setAttribute("aria-sort", sort.descending ? "descending" : "ascending");
      const click = () => choose({ key, descending: isSorted && !sort.descending });
      cell.tabIndex = 0;
      cell.onclick = click;
      cell.onkeydown = (event) => { if (event.key === "Enter") click(); };
      return cell;
    });
    head.replaceChildren(element("tr", {}, ...cells));
  };
  const rowOf = (row) => {
    const cells = columns.map(({ key, isText }) => {
      const content = cellOf(row, key);
      const title = typeof content === "string" && content.length > 20 ? content : "";
      return element("td", { title, className: isText ? "text" : "" }, content);
    });
    const tr = element("tr", { className: classOf(row) }, ...cells);
    tr.style.height = `${ROW_PX}px`;
    if (!open && !hrefOf) return tr;
    const chosen = open || ((each) => { location.hash = hrefOf(each); });
    tr.tabIndex = 0;
    tr.onclick = (event) => { if (!event.target.closest("input, a")) chosen(row); };
    tr.onkeydown = (event) => { if (event.key === "Enter" && event.target === tr) chosen(row); };
    return tr;
  };
  const space = (count) => {
    const cell = element("td", { colSpan: columns.length || 1 });
    cell.style.height = `${count * ROW_PX}px`;
    return element("tr", { className: "space", ariaHidden: "true" }, cell);
  };
  // A column does not become narrower while the user scrolls.
  const keepWidths = () => {
    const cells = [...head.rows[0].cells], widths = cells.map((cell) => cell.offsetWidth);
    cells.forEach((cell, i) => { cell.style.minWidth = `${widths[i]}px`; });
  };
  const draw = () => {
    const focused = [...body.rows].indexOf(document.activeElement);
    const first = Math.min(Math.max(0, Math.floor(place.scrollTop / ROW_PX) - MORE_ROWS), total);
    const seen = Math.ceil(place.clientHeight / ROW_PX) + 2 * MORE_ROWS;
    const last = Math.min(total, first + seen);
    const shown = [];
    for (let index = first; index < last; index += 1) {
      const row = rowAt(index);
      shown.push(row ? rowOf(row) : space(1));
    }
    body.replaceChildren(space(first), ...shown, space(total - last));
    if (shown.length) keepWidths();
    if (focused >= 0) body.rows[focused]?.focus({ preventScroll: true });
  };
  new ResizeObserver(() => { if (total) { drawHead(); draw(); } }).observe(place);
  let isWaiting = false;
  place.onscroll = () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => { isWaiting = false; draw(); });
  };
  const show = (nextColumns, nextSort, nextTotal) => {
    const names = (list) => list.map(({ key, isText }) => `${key} ${isText}`).join("\n");
    const isSame = names(columns) === names(nextColumns) && sort === nextSort;
    columns = nextColumns;
    sort = nextSort;
    total = nextTotal;
    if (!isSame) drawHead();
    draw();
  };
  return { show, draw };
};
