// What a browser makes of the page in each frame: sizes, colours, and words that meet something.
const meets = (a, b) =>
  Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 0.5;

const light = (colour) => {
  const parts = colour.match(/[\d.]+/g).slice(0, 3).map((one) => one / 255);
  const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

const contrast = (one, other) => {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};

const behind = (view, element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = view.getComputedStyle(at).backgroundColor;
    if (!/, 0\)$|transparent/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};

const words = (page) => {
  const found = [];
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.data.trim() || !node.parentElement.checkVisibility()) continue;
    const range = page.createRange();
    range.selectNodeContents(node);
    const rects = [...range.getClientRects()].filter((one) => one.width > 1);
    if (rects.length) found.push({ text: node.data.trim(), rects, element: node.parentElement });
  }
  return found;
};

const look = (frame) => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const said = words(page), meetings = [];
  const drawn = [...page.querySelectorAll("svg *, .track i, .swatch")];
  const lines = drawn.map((one) => {
    const { left, right, top, bottom } = one.getBoundingClientRect();
    const stroke = one.tagName === "line" ? 1 : 0; // its box has no width of its own
    return { left: left - stroke, right: right + stroke, top, bottom };
  });
  for (const [n, one] of said.entries())
    for (const rect of one.rects) {
      if (lines.some((line) => meets(line, rect))) meetings.push(one.text);
      for (const other of said.slice(n + 1))
        if (other.rects.some((its) => meets(its, rect))) meetings.push(`${one.text}/${other.text}`);
    }
  const all = [...page.body.querySelectorAll("*")];
  const widest = all.filter((one) => one.getBoundingClientRect().right > frame.clientWidth + 0.5);
  return {
    width: page.documentElement.scrollWidth,
    widest: widest.slice(0, 3).map((one) => one.outerHTML.slice(0, 80)),
    meetings,
    smallest_px: Math.min(...said.map((o) => parseFloat(view.getComputedStyle(o.element).fontSize))),
    faint: said
      .filter((o) => contrast(view.getComputedStyle(o.element).color, behind(view, o.element)) < 4.5)
      .map((o) => o.text),
    is_dark: light(behind(view, page.body)) < 0.2,
    shows_trials: page.querySelector(".trials td").checkVisibility(),
  };
};

onload = () => {
  const seen = [...document.querySelectorAll("iframe")].map(look);
  document.querySelector("pre").textContent = JSON.stringify(seen);
};
