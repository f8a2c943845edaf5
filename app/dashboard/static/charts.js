// Draws the charts that the service has prepared: `.chart[data-chart]` holds axes, lines and each point's words as JSON.
//
// uPlot draws axes, lines and bands; dots, error bars and marks are drawn on its canvas. The nearest point is read out
// under the chart as the pointer moves, and by the arrow keys. The numbers also stand in a table beside the chart.
"use strict";

const HEIGHT = 280;
const FONT = '12px system-ui, "Noto Sans", "Liberation Sans", sans-serif';
const SMALL_LINE = 60; // a line of fewer points has dots
const SIDES = 72; // beside what is drawn: the left axis, and the padding at the right
const REACH = 60; // pixels around a point within which the pointer chooses it
const plots = new Map(); // box → what is drawn in it

const ready = new WeakSet(); // boxes and tables that were prepared once
const probe = document.createElement("i"); // resolves the style sheet's colours for the canvas
probe.hidden = true;
document.body.append(probe);

const colour = (name, share = 100) => {
  probe.style.color = `color-mix(in srgb, var(--${name}) ${share}%, transparent)`;
  return getComputedStyle(probe).color;
};

function axisOf(axis, side) {
  const value = new Intl.NumberFormat("en", { maximumSignificantDigits: 6, notation: "standard" });
  const common = {
    side,
    label: axis.label || undefined,
    labelSize: 22,
    labelFont: FONT,
    font: FONT,
    stroke: () => colour("muted"),
    grid: { show: side === 3, stroke: () => colour("line"), width: 1, filter: axis.scale === "log" ? powers : (_plot, found) => found },
    ticks: { stroke: () => colour("strong-line"), width: 1, size: 5 },
  };
  if (axis.scale === "hidden") return { ...common, show: false };
  if (axis.scale === "names")
    return { ...common, size: 32, splits: () => axis.names.map((_, at) => at), values: (plot) => fitting(plot, axis.names), grid: { ...common.grid, show: true } };
  if (axis.scale === "time") return { ...common, size: 32, space: 90, values: (_plot, found, _at, _space, apart) => found.map((at) => moment(at, apart)) };
  if (axis.scale === "log") common.splits = () => logTicks(axis);
  const plain = (each) => (each === null ? "" : (Math.abs(each) >= 1e5 || (each && Math.abs(each) < 1e-4) ? each.toExponential(0) : value.format(each)) + axis.unit);
  return { ...common, ...(side === 3 ? { size: 58 } : { size: 32, space: 55 }), values: (_plot, found) => found.map(plain) };
}

// The multiples of powers of ten on an axis. uPlot's own never end if the axis begins right below a power of ten.
function logTicks({ low, high }) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
    for (let digit = 1; digit < 10; digit += 1) ticks.push(Number(`${digit}e${power}`));
  return ticks.filter((at) => at >= low && at <= high);
}

// Names that do not touch: each, or the first of so many as the widest needs room for. Moving over a point reads its own.
function fitting(plot, names) {
  plot.ctx.font = FONT;
  const widest = Math.max(...names.map((name) => plot.ctx.measureText(name).width)) + 8;
  const apart = Math.ceil((widest * names.length) / (plot.width - SIDES));
  return names.map((name, at) => (at % apart ? "" : name));
}

// A time in UTC, as fine as the ticks are.
function moment(at, apart) {
  const text = new Date(at * 1000).toISOString();
  return apart >= 86400 ? text.slice(0, 10) : apart >= 60 ? `${text.slice(5, 10)} ${text.slice(11, 16)}` : text.slice(11, 19);
}

const powers = (_plot, found) => found.map((each) => (Number.isInteger(Math.log10(each)) ? each : null));

// One table for each line that is joined; uPlot aligns them. Dots are drawn by hand, and need only the axes.
function tablesOf(chart) {
  const tables = [];
  const series = [{}];
  const bands = [];
  for (const line of chart.lines) {
    if (line.shape === "dots" || line.points.length < 2) continue;
    const columns = [0, 1].map((at) => line.points.map((point) => point[at]));
    const first = series.length;
    series.push({
      spanGaps: true,
      width: 2,
      stroke: () => colour(line.colour),
      dash: line.dashed ? [6, 4] : undefined,
      fill: line.filled ? () => colour(line.colour) : undefined,
      paths: line.shape === "steps" ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: false },
    });
    if (line.spread === "band" && line.points.every((point) => point[2] !== null)) {
      columns.push(...[3, 2].map((at) => line.points.map((point) => point[at])));
      for (let k = 0; k < 2; k += 1) series.push({ spanGaps: true, width: 0, points: { show: false } });
      bands.push({ series: [first + 1, first + 2], fill: () => colour(line.colour, 18) });
    }
    tables.push(columns);
  }
  const edges = [chart.x.low, chart.x.high];
  if (!tables.length) return { data: [edges, [null, null]], series: [{}, { points: { show: false } }], bands: [] };
  return { data: tables.length > 1 ? uPlot.join(tables) : tables[0], series, bands };
}

function drawDots(plot, chart) {
  const { ctx } = plot;
  const ratio = devicePixelRatio;
  const x = (value) => plot.valToPos(value, "x", true);
  const y = (value) => plot.valToPos(value, "y", true);
  ctx.save();
  ctx.font = `600 ${12 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  ctx.setLineDash([]); // a dashed line may have been drawn before
  for (const line of chart.lines) {
    const alone = line.shape === "dots" || line.points.length < 2;
    ctx.strokeStyle = ctx.fillStyle = colour(line.colour);
    ctx.lineWidth = 1.5 * ratio;
    if (alone && line.spread !== "none")
      for (const [at, , low, high] of line.points) if (low !== null) bar(ctx, x(at), y(low), y(high), 4 * ratio);
    if (alone || (line.shape === "line" && line.points.length < SMALL_LINE && !line.dashed))
      for (const [at, value] of line.points) dot(ctx, x(at), y(value), (alone ? 4 : 3) * ratio, line.hollow);
    if (line.mark) {
      const [at, value] = line.points[line.points.length - 1];
      const room = plot.bbox.left + plot.bbox.width - x(at);
      ctx.textAlign = room < 40 * ratio ? "right" : "left";
      ctx.fillStyle = colour(line.colour);
      ctx.fillText(line.mark, x(at) + (room < 40 * ratio ? -7 : 7) * ratio, y(value) - 9 * ratio);
    }
  }
  ctx.restore();
}

function bar(ctx, x, low, high, half) {
  ctx.beginPath();
  ctx.moveTo(x, low);
  ctx.lineTo(x, high);
  for (const end of [low, high]) {
    ctx.moveTo(x - half, end);
    ctx.lineTo(x + half, end);
  }
  ctx.stroke();
}

function dot(ctx, x, y, radius, hollow) {
  ctx.beginPath();
  ctx.arc(x, y, radius, 0, 2 * Math.PI);
  const inside = ctx.fillStyle;
  if (hollow) ctx.fillStyle = colour("card");
  ctx.fill();
  ctx.fillStyle = inside;
  if (hollow) ctx.stroke();
}

function draw(box) {
  const text = box.dataset.chart;
  const before = plots.get(box);
  if (before && before.text === text && before.theme === theme()) return;
  before?.plot.destroy();
  const chart = JSON.parse(text);
  const { data, series, bands } = tablesOf(chart);
  const spread = { x: chart.x, y: chart.y };
  const scales = Object.fromEntries(
    Object.entries(spread).map(([name, axis]) => [
      name,
      { time: axis.scale === "time", distr: axis.scale === "log" ? 3 : 1, auto: false, range: () => [axis.low, axis.high] },
    ]),
  );
  const plot = new uPlot(
    {
      width: Math.max(box.clientWidth, 200),
      height: HEIGHT,
      series,
      bands,
      scales,
      axes: [axisOf(chart.x, 2), axisOf(chart.y, 3)],
      legend: { show: false },
      cursor: { x: false, y: false, points: { show: false }, drag: { x: false, y: false, setScale: false } },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      padding: [14, 14, 0, 0],
      hooks: { draw: [(drawn) => drawDots(drawn, chart)] },
    },
    data,
    box,
  );
  plot.root.setAttribute("aria-hidden", "true");
  const points = chart.lines
    .filter((line) => !line.quiet)
    .flatMap((line) => line.points.map((point) => ({ line, point })))
    .sort((one, other) => one.point[0] - other.point[0]);
  plots.set(box, { plot, text, theme: theme(), points, at: null, width: box.clientWidth });
  prepare(box);
}

function prepare(box) {
  const { plot } = plots.get(box);
  const pick = document.createElement("div");
  pick.className = "pick";
  pick.hidden = true;
  plot.over.append(pick);
  plot.over.addEventListener("pointermove", (event) => nearest(box, event));
  plot.over.addEventListener("pointerdown", (event) => nearest(box, event));
  plot.over.addEventListener("pointerleave", () => readOut(box, null));
  const table = box.parentElement.querySelector("details.numbers");
  if (table && !ready.has(table)) table.open = false; // it stands open where nothing is drawn
  if (table) ready.add(table);
  if (ready.has(box)) return;
  ready.add(box);
  box.addEventListener("keydown", (event) => step(box, event));
  box.addEventListener("blur", () => readOut(box, null));
}

function nearest(box, event) {
  const { plot, points } = plots.get(box);
  const place = plot.over.getBoundingClientRect();
  let best = [REACH, null];
  points.forEach(({ point }, at) => {
    const far = Math.hypot(plot.valToPos(point[0], "x") - event.clientX + place.left, plot.valToPos(point[1], "y") - event.clientY + place.top);
    if (far < best[0]) best = [far, at];
  });
  readOut(box, best[1]);
}

function step(box, event) {
  const { points, at } = plots.get(box);
  const last = points.length - 1;
  const to = { ArrowRight: at === null ? 0 : Math.min(at + 1, last), ArrowLeft: at === null ? last : Math.max(at - 1, 0), Home: 0, End: last }[event.key];
  if (event.key === "Escape") readOut(box, null);
  if (to === undefined || last < 0) return;
  event.preventDefault();
  readOut(box, to);
}

function readOut(box, at) {
  const drawn = plots.get(box);
  drawn.at = at;
  const pick = drawn.plot.over.querySelector(".pick");
  const place = box.parentElement.querySelector(".readout");
  pick.hidden = at === null;
  if (at === null) return void (place.textContent = "");
  const { line, point } = drawn.points[at];
  pick.style.left = `${drawn.plot.valToPos(point[0], "x")}px`;
  pick.style.top = `${drawn.plot.valToPos(point[1], "y")}px`;
  place.textContent = [line.name, point[4], point[5]].filter(Boolean).join(" · ");
}

const theme = () => `${document.documentElement.dataset.theme ?? ""}${matchMedia("(prefers-color-scheme: dark)").matches}`;
const widths = new ResizeObserver((seen) => {
  for (const { target } of seen) {
    const drawn = plots.get(target);
    if (!drawn || Math.abs(drawn.width - target.clientWidth) < 1) continue;
    drawn.width = target.clientWidth;
    drawn.plot.setSize({ width: Math.max(target.clientWidth, 200), height: HEIGHT });
  }
});

function drawAll() {
  for (const box of [...plots.keys()]) {
    if (box.isConnected) continue;
    plots.get(box).plot.destroy();
    plots.delete(box);
    widths.unobserve(box);
  }
  for (const box of document.querySelectorAll(".chart[data-chart]")) {
    if (!box.clientWidth) continue; // folded away: drawn when it is opened
    draw(box);
    widths.observe(box);
  }
}

drawAll();
new MutationObserver(drawAll).observe(document.documentElement, {
  subtree: true,
  childList: true,
  attributes: true,
  attributeFilter: ["data-chart", "data-theme", "open"],
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
