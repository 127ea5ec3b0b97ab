"use strict";
// Swim-lanes: one row a request in scheduling order; states, stretches, marks and transfers.
SP.parts.lanes = async (root, options, page) => {
  const c = await SP.columns(options.columns);
  const view = page.view, names = page.lanes.names;
  const {states, overlays, marks} = page.styles;
  const row = SP.narrow() ? 26 : 22;
  // Rows are sorted by lane: where each lane's rows begin.
  const index = column => {
    const out = new Int32Array(names.length + 1);
    for (const lane of column) out[lane + 1]++;
    for (let i = 0; i < names.length; i++) out[i + 1] += out[i];
    return out;
  };
  const at = {
    state: index(c["state.lane"]), overlay: index(c["overlay.lane"]),
    mark: index(c["mark.lane"]), transfer: index(c["transfer.lane"]),
  };
  // Largest end so far within a lane: rows of a kind may overlap.
  const reach = {};
  for (const kind of ["state", "overlay", "mark"]) {
    const lane = c[kind + ".lane"], end = c[kind + ".end"];
    reach[kind] = Int32Array.from(end);
    for (let i = 1; i < end.length; i++) {
      if (lane[i] === lane[i - 1]) reach[kind][i] = Math.max(reach[kind][i], reach[kind][i - 1]);
    }
  }
  let shown = names.map((_, i) => i);

  // Calls paint(i, x, width) for the rows of a lane in sight; rows below a pixel are jumped over.
  const each = (kind, lane, width, paint) => {
    const start = c[kind + ".start"], end = c[kind + ".end"], last = at[kind][lane + 1];
    let i = SP.after(start, view.from, at[kind][lane], last);
    while (i > at[kind][lane] && reach[kind][i - 1] > view.from) i--;
    while (i < last && start[i] < view.to) {
      const x = view.x(Math.max(start[i], view.from), width);
      const w = view.x(Math.min(end[i], view.to), width) - x;
      paint(i, x, w);
      // The last row that begins within the pixel may be a long one, so it is drawn too.
      i = w < 1 ? Math.max(i + 1, SP.after(start, view.p(x + 1, width), i + 1, last) - 1) : i + 1;
    }
  };

  const drawLane = (g, lane, y, width) => {
    const left = SP.gutter(), mid = y + row / 2;
    const concerned = page.concerned.has(lane);
    if (lane === view.lane) {
      g.fillStyle = SP.css("--pick");
      g.fillRect(0, y, width, row);
    }
    g.fillStyle = concerned ? SP.css("--bad") : SP.css("--ink");
    g.textAlign = "left";
    g.font = (concerned ? "600 " : "") + "12px system-ui, sans-serif";
    g.fillText(SP.clip(g, names[lane], left - 10), 4, mid);
    g.save();
    g.beginPath();
    g.rect(left, y, width - left, row);
    g.clip();
    each("state", lane, width, (i, x, w) => {
      g.fillStyle = SP.colour(states[c["state.code"][i]]);
      g.fillRect(x, y + 5, Math.max(1, w), row - 11);
    });
    each("overlay", lane, width, (i, x, w) => {
      const style = overlays[c["overlay.code"][i]];
      if (style.hatch) SP.hatch(g, x, y + 5, Math.max(2, w), row - 11, SP.colour(style));
      else {
        g.fillStyle = SP.colour(style);
        g.fillRect(x, y + 2, Math.max(2, w), 3);
      }
    });
    for (let i = at.transfer[lane]; i < at.transfer[lane + 1]; i++) {
      const from = c["transfer.admitted"][i];
      if (from >= view.to) break;
      const end = c["transfer.ended"][i] < 0 ? view.n : c["transfer.ended"][i];
      if (end < view.from) continue;
      const begun = c["transfer.started"][i] < 0 ? end : c["transfer.started"][i];
      const store = c["transfer.kind"][i] === 1;
      g.fillStyle = store ? SP.css("--store") : SP.css("--load");
      const y2 = y + row - 5;
      const a = view.x(Math.max(from, view.from), width), b = view.x(begun, width);
      const z = view.x(Math.min(end, view.to), width);
      for (let x = a; x < Math.min(b, z); x += 5) g.fillRect(x, y2, 2, 3);
      if (z > b) g.fillRect(Math.max(a, b), y2, Math.max(2, z - Math.max(a, b)), 3);
    }
    let seen = -9;
    each("mark", lane, width, (i, x, w) => {
      const code = c["mark.code"][i], middle = x + Math.min(w, 12) / 2;
      if (middle - seen < 3) return;
      seen = middle;
      g.fillStyle = SP.colour(marks[code]);
      g.strokeStyle = SP.css("--paper");
      g.lineWidth = 1.5;
      g.beginPath();
      if (marks[code].shape === "down") {
        g.moveTo(middle - 5, mid - 5);
        g.lineTo(middle + 5, mid - 5);
        g.lineTo(middle, mid + 5);
      } else if (marks[code].shape === "diamond") {
        g.moveTo(middle, mid - 6);
        g.lineTo(middle + 6, mid);
        g.lineTo(middle, mid + 6);
        g.lineTo(middle - 6, mid);
      } else g.arc(middle, mid, 4, 0, 7);
      g.closePath();
      g.stroke();
      g.fill();
    });
    g.restore();
    g.fillStyle = SP.css("--line");
    g.fillRect(0, y + row - 1, width, 1);
  };

  const canvas = SP.canvas("Requests over the trace, one row each", () => box.clientHeight, (g, width, height) => {
    const first = Math.floor(box.scrollTop / row);
    for (let k = first; k < shown.length && k * row - box.scrollTop < height; k++) {
      drawLane(g, shown[k], k * row - box.scrollTop, width);
    }
    if (!shown.length) {
      g.fillStyle = SP.css("--muted");
      g.textAlign = "left";
      g.fillText("no request matches", 8, 14);
    }
    view.overlay(g, width, height, page.findings);
  });
  canvas.className = "stuck";
  const spacer = SP.el("div", {class: "spacer"});
  const box = SP.el("div", {class: "lanes", tabindex: "0", role: "region", "aria-label": "Requests, scrollable"}, canvas, spacer);
  box.addEventListener("scroll", canvas.redraw, {passive: true});

  const search = SP.el("input", {type: "search", placeholder: "find a request", "aria-label": "Find a request"});
  const only = SP.el("input", {type: "checkbox"});
  const sight = SP.el("input", {type: "checkbox"});
  sight.checked = names.length > 100;
  const count = SP.el("span", {class: "muted"});
  const tools = [SP.el("label", {}, search), SP.el("label", {}, sight, " only those in sight")];
  if (page.concerned.size) tools.push(SP.el("label", {}, only, " only those in the findings"));
  // First and last position of each lane.
  const born = new Int32Array(names.length).fill(view.n), gone = new Int32Array(names.length);
  c["state.lane"].forEach((lane, i) => {
    born[lane] = Math.min(born[lane], c["state.start"][i]);
    gone[lane] = Math.max(gone[lane], c["state.end"][i]);
  });
  c["transfer.lane"].forEach((lane, i) => { gone[lane] = Math.max(gone[lane], c["transfer.ended"][i]); });
  let filtered = "";
  const refilter = () => {
    const text = search.value.toLowerCase();
    filtered = sight.checked ? view.from + ":" + view.to : "";
    shown = [];
    for (let i = 0; i < names.length; i++) {
      if (only.checked && !page.concerned.has(i)) continue;
      if (sight.checked && (born[i] >= view.to || gone[i] < view.from)) continue;
      if (!text || names[i].toLowerCase().includes(text)) shown.push(i);
    }
    const wanted = SP.clamp(shown.length * row, 3 * row, SP.narrow() ? 300 : 420);
    box.style.height = wanted + "px";
    spacer.style.height = Math.max(0, shown.length * row - wanted) + "px";
    count.textContent = SP.number(shown.length) + (shown.length === 1 ? " request" : " requests");
    box.scrollTop = 0;
    canvas.redraw();
  };
  for (const control of [search, only, sight]) control.addEventListener("input", refilter);
  // Keep requests that are alive at the cursor on the screen.
  let followed = -1;
  const follow = () => {
    if (followed === view.cursor) return;
    followed = view.cursor;
    const alive = i => born[i] <= view.cursor && view.cursor < gone[i];
    const first = Math.floor(box.scrollTop / row), last = first + Math.ceil(box.clientHeight / row);
    for (let k = first; k < last && k < shown.length; k++) if (alive(shown[k])) return;
    const k = shown.findIndex(alive);
    if (k >= 0) box.scrollTop = Math.max(0, (k - 1) * row);
  };
  view.steer(canvas, (x, y) => {
    const k = Math.floor((y + box.scrollTop) / row);
    if (k >= 0 && k < shown.length) view.lane = shown[k];
    view.changed();
  });
  page.moveLane = step => {
    if (!shown.length) return;
    const k = SP.clamp(shown.indexOf(view.lane) + step, 0, shown.length - 1);
    if (k * row < box.scrollTop) box.scrollTop = k * row;
    if ((k + 1) * row > box.scrollTop + box.clientHeight) box.scrollTop = (k + 1) * row - box.clientHeight;
    view.select(shown[k]);
  };
  page.showLane = lane => {
    const k = shown.indexOf(lane);
    if (k >= 0 && (k * row < box.scrollTop || (k + 1) * row > box.scrollTop + box.clientHeight)) {
      box.scrollTop = k * row - box.clientHeight / 2;
    }
  };
  // State of a lane at a position, -1: not in the engine.
  page.stateAt = (lane, p) => {
    const i = SP.after(c["state.start"], p, at.state[lane], at.state[lane + 1]) - 1;
    return i >= at.state[lane] && c["state.end"][i] > p ? c["state.code"][i] : -1;
  };
  page.overlaysAt = (lane, p) => {
    const out = [];
    for (let i = at.overlay[lane]; i < at.overlay[lane + 1] && c["overlay.start"][i] <= p; i++) {
      if (c["overlay.end"][i] > p) out.push(c["overlay.code"][i]);
    }
    return out;
  };
  // Next position after (or before) p at which something begins on the lane.
  page.nextOn = (lane, p, back) => {
    let best = -1;
    for (const kind of ["state", "overlay", "mark"]) {
      for (let i = at[kind][lane]; i < at[kind][lane + 1]; i++) {
        const s = c[kind + ".start"][i];
        if (back ? s < p && s > best : s > p && (best < 0 || s < best)) best = s;
      }
    }
    return best;
  };
  const used = new Set(c["state.code"]);
  const parts = states.filter((style, i) => used.has(i));
  const usedOver = new Set(c["overlay.code"]), usedMarks = new Set(c["mark.code"]);
  const more = [...overlays.filter((s, i) => usedOver.has(i)), ...marks.filter((s, i) => usedMarks.has(i))];
  if (c["transfer.kind"].includes(0)) {
    more.push({label: "load (dots: start delayed)", light: "#5f3dc4", dark: "#b197fc", help: "a line at the foot of a lane", shape: "thin"});
  }
  if (c["transfer.kind"].includes(1)) more.push({label: "store", light: "#087f5b", dark: "#38d9a9", help: "an unordered reader", shape: "thin"});
  root.append(SP.el("div", {class: "tools"}, tools, count), box, SP.legend([...parts, ...more]));
  view.on(() => {
    if (sight.checked && filtered !== view.from + ":" + view.to) refilter();
    follow();
    canvas.redraw();
  });
  refilter();
};
