"use strict";
// What the checker found; each card jumps to its record.
SP.parts.findings = async (root, options, page) => {
  const view = page.view;
  const undecided = options.undecided || [];
  if (undecided.length) {
    root.append(SP.el("article", {class: "card"}, SP.el("p", {}, SP.el("b", {}, "Cannot tell yet")),
      SP.el("ul", {}, undecided.slice(0, 20).map(text => SP.el("li", {}, text)))));
  } else if (!page.findings.length) {
    root.append(SP.el("p", {class: options.checked ? "good" : "muted"}, options.checked
      ? "No rule of the promise is violated in this trace."
      : "This trace was not checked; stallproof replay checks it."));
  }
  const first = 1, most = 100;
  const rest = SP.el("details", {}, SP.el("summary", {}, ""));
  page.findings.slice(0, most).forEach((f, i) => {
    const go = SP.el("button", {onclick: () => page.jump(i), "aria-label": "Go to " + f.rule + " at line " + f.line}, "go to line " + f.line);
    const detail = f.detail.length ? SP.el("ul", {}, f.detail.slice(0, 40).map(text => SP.el("li", {}, text))) : "";
    (i < first ? root : rest).append(SP.el("article", {class: "card " + f.tone}, SP.el("p", {}, SP.el("b", {}, f.rule), " ", f.text), detail, go));
  });
  if (page.findings.length > first) {
    const by = Object.entries(options.counts || {}).map(([rule, n]) => rule + " " + SP.number(n)).join(", ");
    const more = page.findings.length - first;
    rest.firstChild.textContent = SP.number(more) + (more === 1 ? " more place" : " more places") + (by ? " (" + by + " in all)" : "");
    if (page.findings.length > most) rest.append(SP.el("p", {class: "muted"}, "Those after the first " + most + " are marked in the charts."));
    root.append(rest);
  }
  const notes = SP.data("notes") || [];
  if (notes.length) {
    root.append(SP.el("details", {}, SP.el("summary", {}, notes.length + (notes.length === 1 ? " note" : " notes") + " of the recorder"),
      SP.el("ul", {}, notes.slice(0, 50).map(note => SP.el("li", {},
        SP.el("button", {class: "link", onclick: () => view.go(note.pos)}, note.kind || "note"), " " + note.text)))));
  }
};
