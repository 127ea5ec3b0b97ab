"use strict";
// facts: pairs. table: {head: [...], rows: [[...]]}; numbers are aligned to the right.
SP.parts.facts = async (root, options) => {
  // Long dotted names break after a dot or underscore rather than anywhere.
  const broken = text => text.split(/(?<=[._])/).flatMap((piece, i) => i ? [SP.el("wbr"), piece] : [piece]);
  root.append(SP.el("dl", {class: "pairs"}, (SP.data(options.data) || []).flatMap(([key, value]) =>
    [SP.el("dt", {}, key), SP.el("dd", {}, broken(String(value)))])));
};

SP.parts.table = async (root, options) => {
  const {head, rows} = SP.data(options.data);
  const cell = value => SP.el("td", {class: typeof value === "number" ? "num" : ""},
    typeof value === "number" ? SP.number(value) : value == null ? "–" : String(value));
  root.append(SP.el("div", {class: "scroll", tabindex: "0"}, SP.el("table", {},
    SP.el("thead", {}, SP.el("tr", {}, head.map(text => SP.el("th", {scope: "col"}, String(text))))),
    SP.el("tbody", {}, rows.map(row => SP.el("tr", {}, row.map(cell)))))));
};
