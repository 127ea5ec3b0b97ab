"use strict";
// Stacked bands over positions. Options: columns (name of columns), styles (name in `styles`), unit,
// total ("pool" or a number): the height of the axis.
SP.parts.bands = async (root, options, page) => {
  const styles = page.styles[options.styles];
  const columns = await SP.columns(options.columns);
  const axis = await SP.columns("axis");
  const view = page.view, n = view.n;
  const total = options.total === "pool" ? page.trace.pool : options.total;
  const sums = styles.map(style => {
    const out = new Float64Array(n + 1), column = columns[style.key];
    for (let i = 0; i < n; i++) out[i + 1] = out[i] + column[i];
    return out;
  });
  const tokens = new Float64Array(n + 1), calls = new Float64Array(n + 1);
  let most = 1;
  for (let i = 0; i < n; i++) {
    const call = axis.kind[i] === 0;
    tokens[i + 1] = tokens[i] + (call ? axis.tokens[i] : 0);
    calls[i + 1] = calls[i] + call;
    if (call && axis.tokens[i] > most) most = axis.tokens[i];
  }
  const hazard = styles.findIndex(style => style.key === "hazard");
  const drawn = styles.map((style, i) => i).filter(i => styles[i].key !== "free");

  const chart = SP.canvas("Blocks by state over the trace", () => SP.narrow() ? 170 : 220, (g, width, height) => {
    const left = SP.gutter(), foot = 20, tall = height - foot;
    const top = Math.max(1, total);
    const y = v => 6 + (tall - 6) * (1 - v / top);
    g.fillStyle = SP.colour(styles.find(style => style.key === "free") || {light: "#eee", dark: "#222"});
    g.fillRect(left, y(top), width - left, y(0) - y(top));
    const scale = (view.to - view.from) / (width - left - 1);
    for (let px = 0; px < width - left; px++) {
      const a = SP.clamp(Math.floor(view.from + px * scale), 0, n - 1);
      const b = SP.clamp(Math.floor(view.from + (px + 1) * scale), a + 1, n);
      let base = 0;
      for (const i of drawn) {
        const value = (sums[i][b] - sums[i][a]) / (b - a);
        if (!value) continue;
        const low = y(base), high = y(base + value);
        g.fillStyle = SP.colour(styles[i]);
        g.fillRect(left + px, high, 1.5, low - high); // no seams where a pixel is no device pixel
        base += value;
      }
      if (hazard >= 0 && sums[hazard][b] > sums[hazard][a]) {
        g.fillStyle = SP.css("--bad");
        g.fillRect(left + px - 1, 0, 3, 6);
      }
    }
    g.fillStyle = SP.css("--muted");
    g.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      const v = Math.round(top * share);
      g.fillText(SP.number(v), left - 6, SP.clamp(y(v), 8, tall - 4));
      g.globalAlpha = 0.25;
      g.fillRect(left, y(v), width - left, 1);
      g.globalAlpha = 1;
    }
    if (!SP.narrow()) {
      g.textAlign = "left";
      g.fillText(options.unit, 4, tall / 2);
    }
    ticks(g, width, tall, foot);
    view.overlay(g, width, tall, page.findings);
  });

  const ticks = (g, width, tall, foot) => {
    const left = SP.gutter(), room = Math.max(1, Math.floor((width - left) / 90));
    const raw = (view.to - view.from) / room, power = 10 ** Math.floor(Math.log10(Math.max(1, raw)));
    const every = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw) || raw;
    g.textAlign = "center";
    g.fillStyle = SP.css("--muted");
    for (let p = Math.ceil(view.from / every) * every; p < Math.min(view.to, n); p += every) {
      const x = view.x(p + 0.5, width);
      if (x < left + 12 || x > width - 24) continue;
      g.fillText(SP.number(axis.line[p]), x, tall + foot / 2 + 1);
    }
    g.textAlign = "right";
    g.fillText("line", left - 6, tall + foot / 2 + 1);
  };

  const strip = SP.canvas("Tokens scheduled per call", 52, (g, width, height) => {
    const left = SP.gutter(), scale = (view.to - view.from) / (width - left - 1);
    g.fillStyle = SP.css("--muted");
    for (let px = 0; px < width - left; px++) {
      const a = SP.clamp(Math.floor(view.from + px * scale), 0, n - 1);
      const b = SP.clamp(Math.floor(view.from + (px + 1) * scale), a + 1, n);
      const count = calls[b] - calls[a];
      if (!count) continue;
      const value = (tokens[b] - tokens[a]) / count;
      const tall = value ? Math.max(1, (height - 6) * value / most) : 0;
      g.fillRect(left + px, height - 2 - tall, 1.5, tall);
    }
    g.fillStyle = SP.css("--muted");
    g.fillRect(left, height - 2, width - left, 1);
    g.textAlign = "right";
    g.fillText(SP.number(most), left - 6, 9);
    g.fillText("0", left - 6, height - 8);
    if (!SP.narrow()) {
      g.textAlign = "left";
      g.fillText("tokens a call", 4, height / 2);
    }
    view.overlay(g, width, height, page.findings);
  });
  view.steer(chart);
  view.steer(strip);
  const values = [];
  const legend = SP.legend(styles, values);
  root.append(chart, strip, legend);
  view.on(() => {
    chart.redraw();
    strip.redraw();
    styles.forEach((style, i) => {
      values[i].textContent = SP.number(n ? columns[style.key][view.cursor] : 0);
    });
  });
};
