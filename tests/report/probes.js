// Questions that the tests ask a page; evaluated in it by conftest.py.
window.probe = {
  settled: () => new Promise(done =>
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30)))),

  visible: selector => [...document.querySelectorAll(selector)].filter(node => node.checkVisibility()),
  tell: nodes => nodes.map(node => node.outerHTML.slice(0, 80)),

  smallText: () => probe.tell(probe.visible("body *").filter(node =>
    node.innerText && parseFloat(getComputedStyle(node).fontSize) < 11)),
  outside: width => probe.tell(probe.visible("main *").filter(node =>
    node.getBoundingClientRect().right > width + 1)),
  tinyButtons: () => probe.tell(probe.visible(".bar button, .card button").filter(node =>
    node.offsetHeight < 32 || node.offsetWidth < 32)),

  pixels: canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data,
  blank: () => [...document.querySelectorAll("canvas")].filter(canvas =>
    !canvas.width || !canvas.height || !probe.pixels(canvas).some(x => x)).length,
  reds: part => {
    const d = probe.pixels(document.querySelector(part + " canvas"));
    let n = 0;
    for (let i = 0; i < d.length; i += 4) n += d[i] > 190 && d[i + 1] < 50 && d[i + 2] < 50 && d[i + 3] > 250;
    return n;
  },

  // WCAG contrast of pairs of the style sheet's colours.
  contrast: pairs => {
    const lum = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16) / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    return pairs.map(([a, b]) => {
      const [dim, bright] = [lum(SP.css("--" + a)), lum(SP.css("--" + b))].sort((p, q) => p - q);
      return [a, b, (bright + 0.05) / (dim + 0.05)];
    });
  },

  focused: () => document.activeElement.getAttribute("aria-label") || document.activeElement.innerText,
  taken: async p => {
    const here = await SPpage.reader.at(p);
    const free = SPpage.styles.places.findIndex(style => style.key === "free");
    return [...here.places.values()].filter(([place]) => place !== free).length;
  },

  count: () => {
    window.drawn = 0;
    for (const name of ["fillRect", "fill", "stroke", "fillText"]) {
      const original = CanvasRenderingContext2D.prototype[name];
      CanvasRenderingContext2D.prototype[name] = function (...args) {
        window.drawn++;
        return original.apply(this, args);
      };
    }
  },
};
