"use strict";
// Lines over a numeric axis. Options: columns (name), x (column name), series [{key, label, light, dark, dash}],
// unit, xunit. Columns are float64; NaN is a gap. Dense data is drawn as the range within each pixel.
SP.parts.lines = async (root, options, page) => {
  const c = await SP.columns(options.columns), xs = c[options.x];
  const series = options.series, left = () => SP.narrow() ? 48 : 64;
  let top = 0;
  for (const s of series) for (const v of c[s.key]) if (v > top && Number.isFinite(v)) top = v;
  top = top || 1;
  const low = xs.length ? xs[0] : 0, high = xs.length ? Math.max(xs[xs.length - 1], low + 1e-9) : 1;
  const nice = v => Math.abs(v) >= 1000 ? SP.number(Math.round(v)) : String(+v.toPrecision(3));
  const canvas = SP.canvas(options.label || "Chart", () => SP.narrow() ? 170 : 200, (g, width, height) => {
    const foot = 20, tall = height - foot, l = left();
    const X = x => l + (x - low) / (high - low) * (width - l - 8), Y = v => 6 + (tall - 12) * (1 - v / top);
    g.fillStyle = SP.css("--muted");
    for (const share of [0, 0.5, 1]) {
      g.textAlign = "right";
      g.fillText(nice(top * share), l - 6, Y(top * share));
      g.globalAlpha = 0.25;
      g.fillRect(l, Y(top * share), width - l, 1);
      g.globalAlpha = 1;
      g.textAlign = share === 0 ? "left" : share === 1 ? "right" : "center";
      const x = low + (high - low) * share;
      g.fillText(nice(x) + (options.xunit ? " " + options.xunit : ""), X(x), tall + foot / 2);
    }
    for (const s of series) {
      const column = c[s.key];
      g.strokeStyle = SP.colour(s);
      g.lineWidth = 1.6;
      g.setLineDash(s.dash ? [5, 4] : []);
      g.beginPath();
      let pen = false, pixel = -1, least = 0, most = 0;
      for (let i = 0; i < xs.length; i++) {
        const v = column[i];
        if (!Number.isFinite(v)) {
          pen = false;
          continue;
        }
        const x = X(xs[i]);
        if (pen && Math.floor(x) === pixel) {
          if (v < least) g.lineTo(x, Y(least = v));
          else if (v > most) g.lineTo(x, Y(most = v));
          continue;
        }
        pixel = Math.floor(x);
        least = most = v;
        if (pen) g.lineTo(x, Y(v)); else g.moveTo(x, Y(v));
        pen = true;
      }
      g.stroke();
    }
    g.setLineDash([]);
  });
  root.append(canvas, SP.legend(series.map(s => ({...s, help: s.help || "", hatch: false}))));
  if (options.unit) root.prepend(SP.el("p", {class: "muted unit"}, options.unit));
};
