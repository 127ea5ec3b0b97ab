"use strict";
// Puts the parts on the page and owns the keyboard.
(async () => {
  const manifest = SP.data("page"), main = document.getElementById("main");
  const trace = SP.data("trace"), lanes = SP.data("lanes") || {names: []};
  const findings = SP.data("findings") || [];
  const page = {
    styles: SP.data("styles") || {}, trace, lanes, findings,
    rank: SP.data("rank") || [], laneNumber: [], concerned: new Set(), origin: 0,
    view: new SP.View(trace ? trace.n : 0), reader: trace ? new SP.Trace(trace) : null,
  };
  page.rank.forEach((shown, lane) => { page.laneNumber[shown] = lane; });
  for (const f of findings) for (const lane of f.lanes) page.concerned.add(lane);
  const view = page.view;
  const axis = trace ? await SP.columns("axis") : null;
  if (axis) page.origin = axis.ts.find(t => t > 0) || 0;

  let current = -1;
  page.jump = i => {
    if (!findings.length) return;
    current = (i + findings.length) % findings.length;
    const f = findings[current];
    if (f.lanes.length) view.lane = f.lanes[0];
    if (view.to - view.from > 400) view.frame(f.pos - 100, 200);
    view.go(f.pos);
    if (f.lanes.length && page.showLane) page.showLane(f.lanes[0]);
  };
  const seekCall = step => {
    let p = view.cursor + step;
    while (p > 0 && p < view.n - 1 && axis.kind[p] !== 0) p += step;
    view.go(p);
  };
  const along = back => {
    if (view.lane < 0) page.moveLane(0);
    const p = page.nextOn(view.lane, view.cursor, back);
    if (p >= 0) view.go(p);
  };

  let playing = 0;
  const play = () => {
    if (playing) {
      clearInterval(playing);
      playing = 0;
    } else {
      playing = setInterval(() => view.cursor >= view.n - 1 ? play() : seekCall(1), 250);
    }
    playButton.textContent = playing ? "❚❚" : "▶▶";
    playButton.setAttribute("aria-label", playing ? "Stop" : "Play");
  };
  const keys = [
    ["ArrowRight", "→", "next record", () => view.go(view.cursor + 1)],
    ["ArrowLeft", "←", "previous record", () => view.go(view.cursor - 1)],
    ["Shift+ArrowRight", "Shift →", "next scheduling call", () => seekCall(1)],
    ["Shift+ArrowLeft", "Shift ←", "previous scheduling call", () => seekCall(-1)],
    ["ArrowDown", "↓", "next request", () => page.moveLane(1)],
    ["ArrowUp", "↑", "previous request", () => page.moveLane(-1)],
    ["e", "e", "next change of the selected request", () => along(false)],
    ["Shift+E", "E", "previous change of the selected request", () => along(true)],
    ["n", "n", "next finding", () => page.jump(current + 1)],
    ["Shift+N", "N", "previous finding", () => page.jump(current - 1)],
    ["Home", "Home", "first record", () => view.go(0)],
    ["End", "End", "last record", () => view.go(view.n - 1)],
    ["+", "+", "zoom in", () => view.zoom(0.5)],
    ["=", "", "", () => view.zoom(0.5)],
    ["-", "−", "zoom out", () => view.zoom(2)],
    ["0", "0", "whole trace", () => view.fit()],
    [" ", "Space", "play, stop", () => play()],
    ["?", "?", "this list", () => help.open ? help.close() : help.showModal()],
  ];
  const help = SP.el("dialog", {"aria-label": "Keys"}, SP.el("h2", {}, "Keys"),
    SP.el("table", {}, SP.el("tbody", {}, keys.filter(k => k[1]).map(([, key, what]) =>
      SP.el("tr", {}, SP.el("td", {}, SP.el("kbd", {}, key)), SP.el("td", {}, what))))),
    SP.el("p", {class: "muted"}, "Click or drag in a chart to move the cursor, Ctrl and the wheel to zoom."),
    SP.el("form", {method: "dialog"}, SP.el("button", {}, "Close")));
  const button = (text, label, act, kind = "") =>
    SP.el("button", {"aria-label": label, title: label, onclick: act, class: kind}, text);
  const playButton = button("▶▶", "Play", () => play());
  const slider = SP.el("input", {type: "range", min: "0", max: String(Math.max(0, view.n - 1)), value: "0", class: "seek", "aria-label": "Record"});
  slider.addEventListener("input", () => view.go(Number(slider.value)));
  const where = SP.el("output", {class: "muted"});

  if (trace) {
    const bar = SP.el("div", {class: "bar", role: "toolbar", "aria-label": "Stepping and zoom"},
      button("|◀", "First record", () => view.go(0), "roomy"), button("◀", "Previous scheduling call", () => seekCall(-1)),
      button("▶", "Next scheduling call", () => seekCall(1)), button("▶|", "Last record", () => view.go(view.n - 1), "roomy"), playButton,
      findings.length ? button("finding", "Next finding", () => page.jump(current + 1)) : "",
      SP.el("span", {class: "gap"}), button("−", "Zoom out", () => view.zoom(2)), button("+", "Zoom in", () => view.zoom(0.5)),
      button("all", "Whole trace", () => view.fit()), button("?", "Keys", () => help.showModal(), "roomy"), SP.el("div", {class: "seekrow"}, slider, where));
    document.body.append(help);
    page.bar = bar;
    view.on(() => {
      slider.value = String(view.cursor);
      where.textContent = view.n ? "record " + SP.number(view.cursor + 1) + " of " + SP.number(view.n) : "no records";
    });
    document.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const target = event.target;
      if (target.matches("input:not([type=range]):not([type=checkbox]), textarea, select")) return;
      if (help.open && event.key !== "?") return;
      if (event.key === " " && target.matches("button, input, summary, a")) return;
      const shift = event.shiftKey && (event.key.length > 1 || /[a-z]/i.test(event.key));
      const found = keys.find(k => k[0] === (shift ? "Shift+" : "") + event.key);
      if (found && view.n) {
        event.preventDefault();
        found[3]();
      }
    });
  }

  const areas = {wide: SP.el("div", {class: "wide"}), main: SP.el("div", {class: "main"}), side: SP.el("div", {class: "side"})};
  const waiting = [];
  for (const part of manifest.parts) {
    const body = SP.el("div", {class: "body"});
    const section = SP.el("section", {class: "part " + part.kind, "aria-label": part.title}, SP.el("h2", {}, part.title), body);
    areas[part.area].append(section);
    waiting.push(Promise.resolve(SP.parts[part.kind](body, part.options, page)).catch(error => {
      body.append(SP.el("p", {class: "bad"}, "This part could not be drawn: " + error.message));
      console.error(error);
    }));
  }
  main.append(areas.wide, ...(page.bar ? [page.bar] : []), areas.main, areas.side);
  await Promise.all(waiting);
  if (findings.length && trace) page.jump(0);
  else if (trace) view.go(0);
  else view.changed();
  document.documentElement.dataset.ready = "yes";
  window.SPpage = page;
})();
