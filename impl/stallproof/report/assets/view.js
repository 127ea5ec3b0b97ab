"use strict";
// What all charts of a page share: the visible stretch, the cursor, the selected lane.
SP.View = class {
  constructor(n) {
    this.n = n;
    this.from = 0;
    this.to = Math.max(1, n);
    this.cursor = 0;
    this.lane = -1;
    this.block = -1;
    this.listeners = [];
  }

  on(listener) {
    this.listeners.push(listener);
  }

  changed() {
    for (const listener of this.listeners) listener(this);
  }

  // Move the cursor and bring it into sight.
  go(p) {
    this.cursor = SP.clamp(Math.round(p), 0, Math.max(0, this.n - 1));
    const span = this.to - this.from;
    if (this.cursor < this.from || this.cursor + 1 > this.to) this.frame(this.cursor + 0.5 - span / 2, span);
    this.changed();
  }

  frame(from, span) {
    span = SP.clamp(span, Math.min(8, this.n || 1), Math.max(1, this.n));
    this.from = SP.clamp(from, 0, Math.max(0, this.n - span));
    this.to = this.from + span;
  }

  // Zoom by a factor around `p` (the cursor when left out), which keeps its place on the screen.
  zoom(factor, p = this.cursor + 0.5) {
    const span = this.to - this.from;
    const before = this.from;
    this.frame(this.from, span * factor);
    const real = (this.to - this.from) / span;
    this.frame(p - (p - before) * real, span * real);
    this.changed();
  }

  fit() {
    this.frame(0, this.n);
    this.changed();
  }

  select(lane) {
    this.lane = lane;
    this.changed();
  }

  x(p, width) {
    const left = SP.gutter();
    return left + (p - this.from) / (this.to - this.from) * (width - left - 1);
  }

  p(x, width) {
    const left = SP.gutter();
    return this.from + (x - left) / (width - left - 1) * (this.to - this.from);
  }

  // Let a canvas set the cursor by click or drag, and zoom with Ctrl and the wheel.
  steer(canvas, pick) {
    const move = event => {
      const box = canvas.getBoundingClientRect();
      const x = event.clientX - box.left;
      if (pick) pick(x, event.clientY - box.top, box);
      if (x >= SP.gutter()) this.go(Math.floor(this.p(x, box.width)));
    };
    canvas.addEventListener("pointerdown", event => {
      if (event.button) return;
      if (event.pointerType === "mouse") {
        canvas.setPointerCapture(event.pointerId);
        move(event);
      }
    });
    canvas.addEventListener("pointermove", event => {
      if (event.pointerType === "mouse" && event.buttons & 1) move(event);
    });
    canvas.addEventListener("click", event => {
      if (event.pointerType !== "mouse") move(event);
    });
    canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.p(event.clientX - box.left, box.width));
    }, {passive: false});
  }

  // The cursor and the findings, drawn over a chart.
  overlay(g, width, height, findings) {
    const left = SP.gutter();
    g.save();
    g.beginPath();
    g.rect(left, 0, width - left, height);
    g.clip();
    for (const pos of new Set(findings.map(f => f.pos))) {
      if (pos + 1 < this.from || pos > this.to) continue;
      const x = this.x(pos, width), w = Math.max(2, this.x(pos + 1, width) - x);
      g.fillStyle = SP.css("--bad");
      g.globalAlpha = 0.28;
      g.fillRect(x, 0, w, height);
      g.globalAlpha = 1;
      g.fillRect(x, 0, 2, height);
    }
    const x = this.x(this.cursor, width), w = Math.max(1, this.x(this.cursor + 1, width) - x);
    g.fillStyle = SP.css("--ink");
    g.globalAlpha = 0.1;
    g.fillRect(x, 0, w, height);
    g.globalAlpha = 0.85;
    g.fillRect(x, 0, 1, height);
    if (w > 3) g.fillRect(x + w - 1, 0, 1, height);
    g.restore();
  }
};
