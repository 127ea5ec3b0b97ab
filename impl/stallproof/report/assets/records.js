"use strict";
// What happened in the record at the cursor, in words, and who waits and who holds just then.
SP.sentences = (() => {
  const blocks = ids => (ids.length === 1 ? "block " : "blocks ") + SP.ranges(ids);
  const hold = verb => e => [e[1], verb + " " + blocks(e[2])];
  const why = {blocks: "too few free", reserved: "the rest is reserved", fit: "the whole sequence does not fit",
    fence: "behind a fence", closed: "behind another refusal", budget: "token budget", slots: "no seat left"};
  const plain = text => e => [e[1], text];
  return {
    alloc: hold("is given"), share: hold("shares"), free: hold("gives up"), prune: hold("lets go, out of its window,"),
    fence: e => [e[1], "gives up " + blocks(e[2]) + ", kept out of the pool until step " + e[3]],
    drain: e => ["", blocks(e[1]) + ": fence over"],
    pin: e => [e[1], "pins " + blocks(e[2])],
    unpin: e => [e[1], "unpins " + blocks(e[2])],
    touch: e => [e[1], "touches " + blocks(e[2])],
    load: e => [e[1], e[4] + " load " + e[2] + " admitted into " + blocks(e[3])],
    start: e => [e[1], "load " + e[2] + " may write from now on"],
    recv: e => [e[1], "load " + e[2] + " has arrived"],
    load_failed: e => [e[1], "load " + e[2] + " failed, " + blocks(e[3]) + " not filled"],
    store: e => [e[2], "store " + e[1] + " reads " + blocks(e[3])],
    stored: e => ["", "store " + e[1] + " is done" + (e[2] && e[2] !== "done" ? " (" + e[2] + ")" : "")],
    ignored: e => [e[1], "report “" + e[2] + "” ignored: " + e[3]],
    admit: plain("starts to run"), promote: plain("is promoted: its load is complete"),
    refuse: e => [e[1], "is refused" + (e[2] >= 0 ? " " + e[2] + (e[2] === 1 ? " block" : " blocks") : "") + ": " + (Object.hasOwn(why, e[3]) ? why[e[3]] : e[3])],
    not_yet: plain("the connector answers “not yet”"), wait: plain("waits instead of preempting (patience)"),
    preempt: e => [e[1], "is preempted" + (e[2] ? " for " + e[2] : "")],
    evict: e => [e[1], "is evicted for " + e[2]],
    quarantine: e => [e[1], "load " + e[2] + ": " + blocks(e[3]) + " into quarantine"],
    unquarantine: e => [e[1], "load " + e[2] + ": " + blocks(e[3]) + " out of quarantine"],
    expire: e => [e[1], "its " + e[2] + " passed the deadline"],
    add: e => [e[1], "arrives: prompt " + SP.number(e[4]) + ", at most " + SP.number(e[5]) + " tokens out"],
    finish: e => [e[1], "finishes (" + e[2] + ")"],
    rewind: e => [e[1], "computed tokens set back to " + e[2]],
    park: e => [e[1], "waits outside: " + e[2]], unpark: plain("is back from outside"),
    turn: plain("goes on with its next turn"),
    pause: e => ["", "pause state: " + e[1]], reset: e => ["", "prefix cache reset" + (e[1] ? "" : " refused")],
  };
})();

SP.parts.records = async (root, options, page) => {
  const axis = await SP.columns("axis"), view = page.view;
  const head = SP.el("p", {class: "where", "aria-live": "polite"});
  const list = SP.el("ol", {class: "events", tabindex: "0", "aria-label": "Events of this record"});
  const tokens = SP.el("p", {class: "muted"});
  const table = SP.el("tbody");
  const live = SP.el("div", {class: "scroll live", tabindex: "0", "aria-label": "Requests at this record"}, SP.el("table", {},
    SP.el("thead", {}, SP.el("tr", {}, ["request", "state", "blocks", ""].map(text => SP.el("th", {scope: "col"}, text)))), table));
  root.append(head, list, tokens, SP.el("h3", {}, "Who waits, who holds"), live);
  const words = {sched: "scheduling call", update: "output processed", outside: "between calls", note: "note", end: "end"};
  let latest = 0;

  const holdings = places => {
    const out = new Map();
    for (const [place, lane] of places.values()) if (lane >= 0) out.set(lane, (out.get(lane) || 0) + 1);
    return out;
  };
  const rows = (p, places) => {
    const out = [], held = holdings(places);
    for (let lane = 0; lane < page.lanes.names.length && out.length < 200; lane++) {
      const state = page.stateAt(lane, p);
      if (state < 0) continue;
      const notes = page.overlaysAt(lane, p).map(code => page.styles.overlays[code].label);
      out.push([lane, page.styles.states[state], held.get(page.laneNumber[lane]) || 0, notes.join(", ")]);
    }
    return out;
  };
  const show = async () => {
    const mine = ++latest, p = view.cursor;
    if (!view.n) {
      head.textContent = "The trace holds no records.";
      return;
    }
    const kind = page.trace.kinds[axis.kind[p]];
    const step = axis.step[p] >= 0 ? ", step " + SP.number(axis.step[p]) : "";
    const file = page.trace.files.length > 1 ? " of " + page.trace.files[axis.part[p]] : "";
    head.textContent = "Line " + axis.line[p] + file + ": " + words[kind] + step +
      (axis.ts[p] ? ", " + (axis.ts[p] - page.origin).toFixed(3) + " s" : "");
    const found = page.findings.filter(f => f.pos === p);
    const here = await page.reader.at(p);
    if (mine !== latest) return;
    list.replaceChildren();
    for (const f of found) list.append(SP.el("li", {class: "bad"}, SP.el("b", {}, f.rule), " " + f.text));
    if (!here) return;
    const {record} = here;
    const events = record.ev || [];
    for (const event of events.slice(0, 400)) {
      const tell = Object.hasOwn(SP.sentences, event[0]) && SP.sentences[event[0]];
      const [who, what] = tell ? tell(event) : ["", JSON.stringify(event)];
      list.append(SP.el("li", {}, who ? SP.el("b", {}, who) : "", who ? " " + what : what));
    }
    if (events.length > 400) list.append(SP.el("li", {class: "muted"}, SP.number(events.length - 400) + " more"));
    if (record.text) list.append(SP.el("li", {}, SP.el("b", {}, record.kind || "note"), " " + record.text));
    if (!list.childNodes.length) list.append(SP.el("li", {class: "muted"}, "no events"));
    const given = Object.entries(record.tok || record.out || {});
    const sum = given.reduce((total, [, count]) => total + count, 0);
    const first = given.slice(0, 6).map(([who, count]) => who + " " + count).join(", ");
    tokens.textContent = kind === "sched"
      ? sum ? SP.number(sum) + " tokens scheduled: " + first + (given.length > 6 ? ", … " + given.length + " requests" : "")
        : "no token scheduled"
      : kind === "update" && sum ? SP.number(sum) + " tokens out: " + first + (given.length > 6 ? ", …" : "") : "";
    table.replaceChildren(...rows(p, here.places).map(([lane, style, blocks, notes]) => {
      const swatch = SP.el("span", {class: "swatch"});
      swatch.style.setProperty("--light", style.light);
      swatch.style.setProperty("--dark", style.dark);
      const name = SP.el("button", {class: "link" + (page.concerned.has(lane) ? " bad" : ""), onclick: () => {
        view.select(lane);
        page.showLane(lane);
      }}, page.lanes.names[lane]);
      return SP.el("tr", {class: lane === view.lane ? "picked" : ""}, SP.el("td", {}, name),
        SP.el("td", {}, swatch, style.label), SP.el("td", {class: "num"}, String(blocks)), SP.el("td", {}, notes));
    }));
  };
  view.on(show);
};
