"use strict";
// Every block of the pool as a cell, in the colour of its place at the cursor.
SP.parts.blocks = async (root, options, page) => {
  const view = page.view, pool = page.trace.pool, styles = page.styles.places;
  const free = styles.findIndex(style => style.key === "free");
  // With more blocks than cells, a cell shows the most telling of its blocks.
  const group = Math.max(1, Math.ceil(pool / 20000)), cells = Math.ceil(pool / group);
  const telling = styles.map((style, i) => style.key === "hazard" ? 99 : style.key === "free" ? -1 : i);
  let here = null;
  const layout = width => {
    const size = SP.clamp(Math.floor(Math.sqrt(width * 300 / Math.max(1, cells))), 3, 34);
    const across = Math.max(1, Math.floor(width / size));
    return {size, across, height: Math.ceil(cells / across) * size};
  };
  const canvas = SP.canvas("Blocks of the pool", width => Math.max(20, layout(width).height), (g, width) => {
    const {size, across} = layout(width), gap = size > 8 ? 2 : size > 4 ? 1 : 0;
    const look = new Map();
    if (here) {
      for (const [block, [place, lane]] of here.places) {
        const cell = Math.floor((block - 1) / group), old = look.get(cell);
        if (!old || telling[place] > telling[old[0]]) look.set(cell, [place, lane]);
      }
    }
    for (let i = 0; i < cells; i++) {
      const x = i % across * size, y = Math.floor(i / across) * size, w = size - gap;
      const [place, lane] = look.get(i) || [free, -1];
      g.fillStyle = SP.colour(styles[place]);
      g.fillRect(x, y, w, w);
      if (styles[place].hatch && size > 8) SP.hatch(g, x, y, w, w, SP.css("--paper"));
      if (lane >= 0 && page.rank[lane] === view.lane) {
        g.strokeStyle = SP.css("--ink");
        g.lineWidth = Math.min(2, size / 4);
        g.strokeRect(x + 1, y + 1, w - 2, w - 2);
      }
      if (size >= 22) {
        g.fillStyle = place === free ? SP.css("--muted") : SP.over(SP.colour(styles[place]));
        g.textAlign = "center";
        g.font = "11px system-ui, sans-serif";
        g.fillText(String(i * group + 1), x + w / 2, y + w / 2 + 1);
      }
    }
    const outline = (block, colour, dashed) => {
      const i = Math.floor((block - 1) / group);
      if (i < 0 || i >= cells) return;
      g.strokeStyle = colour;
      g.lineWidth = size > 8 ? 2 : 1;
      g.setLineDash(dashed && size > 8 ? [3, 2] : []);
      g.strokeRect(i % across * size + 1, Math.floor(i / across) * size + 1, size - gap - 2, size - gap - 2);
      g.setLineDash([]);
    };
    if (here) for (const block of here.moved) outline(block, SP.css("--ink"), true);
    for (const f of page.findings) if (f.pos === view.cursor) for (const b of f.blocks) outline(b, SP.css("--bad"));
    if (view.block > 0) outline(view.block, SP.css("--bad"));
  });
  const say = SP.el("p", {class: "muted", "aria-live": "polite"});
  const field = SP.el("input", {type: "number", min: "1", max: String(pool), "aria-label": "Block number"});
  const pick = block => {
    view.block = SP.clamp(block, 1, pool);
    field.value = String(view.block);
    tell();
    canvas.redraw();
  };
  field.addEventListener("change", () => pick(Number(field.value) || 1));
  canvas.addEventListener("click", event => {
    const box = canvas.getBoundingClientRect(), {size, across} = layout(box.width);
    const column = Math.floor((event.clientX - box.left) / size);
    const cell = Math.floor((event.clientY - box.top) / size) * across + column;
    if (column < across && cell < cells) pick(cell * group + 1);
  });
  const tell = () => {
    if (view.block < 1 || !here) {
      say.textContent = "Outlined: the selected request. Dashed: moved by this record." + (group > 1 ? " One cell is " + group + " blocks." : "");
      return;
    }
    const [place, lane] = here.places.get(view.block) || [free, -1];
    say.textContent = "Block " + view.block + ": " + styles[place].help +
      (lane >= 0 ? ", " + page.lanes.names[page.rank[lane]] : "");
  };
  root.append(canvas, SP.el("div", {class: "tools"}, SP.el("label", {}, "block ", field), say));
  view.on(async () => {
    const p = view.cursor, got = view.n ? await page.reader.at(p) : null;
    if (p !== view.cursor) return;
    here = got;
    tell();
    canvas.redraw();
  });
};
