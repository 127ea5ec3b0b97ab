"use strict";
// Data, colours and small helpers. Text from a trace goes through textContent and canvas text only.
const SP = {parts: {}};

SP.data = name => {
  const node = document.getElementById("json-" + name);
  return node ? JSON.parse(node.textContent) : null;
};

SP.inflate = async name => {
  const node = document.getElementById("blob-" + name);
  if (!node) throw new Error("no data named " + name);
  const text = node.textContent;
  let bytes;
  if (Uint8Array.fromBase64) bytes = Uint8Array.fromBase64(text);
  else {
    const raw = atob(text);
    bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
};

SP.cache = new Map();

// Columns of numbers packed by stallproof.report.page.pack.
SP.columns = name => {
  if (!SP.cache.has(name)) {
    SP.cache.set(name, SP.inflate(name).then(buffer => {
      const size = new DataView(buffer).getUint32(0, true);
      const directory = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
      const types = {B: Uint8Array, i: Int32Array, d: Float64Array};
      const out = {};
      for (const [column, type, at, length] of directory) {
        out[column] = new types[type](buffer, 4 + size + at, length);
      }
      return out;
    }));
  }
  return SP.cache.get(name);
};

SP.json = async name => JSON.parse(new TextDecoder().decode(await SP.inflate(name)));

SP.el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  for (const child of children.flat()) node.append(child);
  return node;
};

SP.number = x => x.toLocaleString("en");
SP.dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
SP.colour = style => SP.dark() ? style.dark : style.light;
// Black or white, whichever reads better on a colour "#rrggbb".
SP.over = colour => {
  const [r, g, b] = [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16));
  return r * 0.299 + g * 0.587 + b * 0.114 > 150 ? "#17202b" : "#ffffff";
};
SP.css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
SP.clamp = (x, low, high) => Math.max(low, Math.min(high, x));
SP.narrow = () => innerWidth < 600;
SP.gutter = () => SP.narrow() ? 64 : 132;

// Ids as ranges: [1, 2, 3, 7] -> "1–3, 7".
SP.ranges = (ids, most = 12) => {
  const out = [];
  for (let i = 0; i < ids.length && out.length < most;) {
    let j = i;
    while (j + 1 < ids.length && ids[j + 1] === ids[j] + 1) j++;
    out.push(j > i + 1 ? ids[i] + "–" + ids[j] : j > i ? ids[i] + ", " + ids[j] : String(ids[i]));
    i = j + 1;
    if (out.length === most && i < ids.length) out.push("… (" + SP.number(ids.length) + " in all)");
  }
  return out.join(", ");
};

// First index in sorted `column` between `low` and `high` whose value is greater than `x`.
SP.after = (column, x, low, high) => {
  while (low < high) {
    const mid = (low + high) >> 1;
    if (column[mid] > x) high = mid; else low = mid + 1;
  }
  return low;
};

SP.hatch = (g, x, y, w, h, colour) => {
  g.save();
  g.beginPath();
  g.rect(x, y, w, h);
  g.clip();
  g.strokeStyle = colour;
  g.globalAlpha = 0.55;
  g.lineWidth = 1;
  g.beginPath();
  for (let k = Math.floor((x - h) / 5) * 5; k < x + w; k += 5) {
    g.moveTo(k, y + h);
    g.lineTo(k + h, y);
  }
  g.stroke();
  g.restore();
};

// A canvas that follows its width and the device's pixels; `draw(g, width, height)` is called when needed.
SP.canvas = (label, height, draw) => {
  const canvas = SP.el("canvas", {role: "img", "aria-label": label});
  let queued = false;
  const paint = () => {
    queued = false;
    const width = canvas.clientWidth;
    const tall = typeof height === "function" ? height(width) : height;
    if (!width) return;
    const scale = devicePixelRatio || 1;
    canvas.style.height = tall + "px";
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(tall * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(tall * scale);
    }
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, tall);
    g.font = "12px system-ui, sans-serif";
    g.textBaseline = "middle";
    draw(g, width, tall);
  };
  canvas.redraw = () => {
    if (!queued) {
      queued = true;
      requestAnimationFrame(paint);
    }
  };
  new ResizeObserver(canvas.redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", canvas.redraw);
  return canvas;
};

SP.legend = (styles, values) => SP.el("ul", {class: "legend"}, styles.map((style, i) => {
  const swatch = SP.el("span", {class: "swatch" + (style.hatch ? " hatched" : "") + (style.shape ? " " + style.shape : "")});
  swatch.style.setProperty("--light", style.light);
  swatch.style.setProperty("--dark", style.dark);
  const item = SP.el("li", {title: style.help}, swatch, style.label);
  if (values) {
    const value = SP.el("b", {});
    item.append(" ", value);
    values[i] = value;
  }
  return item;
}));

SP.clip = (g, text, width) => {
  if (g.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (g.measureText(text.slice(0, mid) + "…").width <= width) low = mid; else high = mid - 1;
  }
  return low ? text.slice(0, low) + "…" : "";
};
