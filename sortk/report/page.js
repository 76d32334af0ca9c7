// The page of a report: reads the JSON beside it and draws it. No library, no network.
"use strict";

const data = JSON.parse(document.getElementById("report").textContent);

// --------------------------------------------------------------------------------------------------------------------
// Small words for making elements

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const percent = (rate, places = 2) => (rate == null ? "–" : (100 * rate).toFixed(places));
const short = (number) => (number === 0 ? "0" : Math.abs(number) < 0.001 ? number.toExponential(1) : String(+number.toPrecision(3)));
const hours = (value) => (value >= 10 ? value.toFixed(0) : value >= 0.1 ? value.toFixed(2) : value.toFixed(3));

function clock(seconds) {
  const minutes = Math.floor(seconds / 60);
  return `${minutes}:${(seconds - 60 * minutes).toFixed(1).padStart(4, "0")}`;
}

function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function table(header, rows, texts = 1) {
  const cell = (tag, value, column) => make(tag, { class: column < texts ? "" : "number" }, value);
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `table: ${header.filter((name) => name).join(", ")}` },
    make("table", {},
      make("thead", {}, make("tr", {}, header.map((value, column) => cell("th", value, column)))),
      make("tbody", {}, rows.map((row) => make("tr", {}, row.map((value, column) => cell("td", value, column)))))));
}

function legend(items) {
  return make("div", { class: "legend" }, items.map(([name, style]) => make("span", {}, make("i", { style: `background:${style}` }), name)));
}

function panel(title, ...children) {
  return make("div", { class: "panel" }, title && make("h3", {}, title), ...children);
}

const ERRORS = [["missed", "missed"], ["false alarm", "false-alarm"], ["confusion", "confusion"]];
const errorLegend = () => legend(ERRORS.map(([name, style]) => [name, `var(--${style})`]));

// --------------------------------------------------------------------------------------------------------------------
// Charts

const CHART = { width: 420, height: 210, left: 46, right: 10, top: 12, bottom: 26 };

function ticks(low, high, n = 4) {
  const rough = (high - low) / n || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9 * step; value += step) found.push(+value.toPrecision(12));
  return found;
}

// Axes and the two scales; y from `low` to `high`.
function axes(xEnd, low, high, { format = short, xFormat = short, xStart = 0 } = {}) {
  const { width, height, left, right, top, bottom } = CHART;
  const x = (value) => left + ((value - xStart) / (xEnd - xStart || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low || 1)) * (height - top - bottom);
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const value of ticks(low, high)) {
    svg.append(draw("line", { class: "grid-line", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  for (const value of ticks(xStart, xEnd, 5)) {
    svg.append(draw("text", { x: x(value), y: height - 8, "text-anchor": "middle" }, xFormat(value)));
  }
  return { svg, x, y };
}

function lineChart(title, series, { phases = [], xEnd, format = short, dots = false } = {}) {
  const values = series.flatMap((line) => line.points.map((point) => point[1]));
  // A spike at the start would flatten all the rest.
  const sorted = [...values].sort((a, b) => a - b);
  const high = Math.min(sorted.at(-1), 2 * sorted[Math.floor(0.95 * (sorted.length - 1))] || Infinity);
  const { svg, x, y } = axes(xEnd, Math.min(0, sorted[0]), high || 1, { format });
  svg.setAttribute("aria-label", title);
  for (const phase of phases) {
    if (phase.x > 0) svg.append(draw("line", { class: "phase", x1: x(phase.x), x2: x(phase.x), y1: CHART.top, y2: CHART.height - CHART.bottom }));
  }
  for (const line of series) {
    const points = line.points.map(([at, value]) => `${x(at).toFixed(1)},${y(Math.min(value, high)).toFixed(1)}`);
    svg.append(draw("polyline", { points: points.join(" "), fill: "none", stroke: line.colour, "stroke-width": 1.8, "stroke-linejoin": "round" }));
    if (dots) svg.append(...points.map((point) => draw("circle", { cx: point.split(",")[0], cy: point.split(",")[1], r: 3.2, fill: line.colour })));
  }
  const cursor = draw("line", { class: "phase", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
  svg.append(cursor);
  const names = series.map((line) => make("span", {}, make("i", { style: `background:${line.colour}` }), line.name, " ", make("b", {}, "")));
  const tell = (at) => series.forEach((line, index) => {
    const near = line.points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
    names[index].lastChild.textContent = format(near[1]);
  });
  tell(xEnd);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const along = ((event.clientX - box.left) / box.width) * CHART.width;
    const at = Math.max(0, Math.min(xEnd, ((along - CHART.left) / (CHART.width - CHART.left - CHART.right)) * xEnd));
    cursor.setAttribute("x1", x(at));
    cursor.setAttribute("x2", x(at));
    cursor.setAttribute("visibility", "visible");
    tell(at);
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    tell(xEnd);
  });
  return panel(title, svg, make("div", { class: "legend" }, names));
}

const LINES = [0, 1, 2, 3, 4, 5, 6, 7].map((index) => `var(--speaker-${index})`);

// --------------------------------------------------------------------------------------------------------------------
// Results

function results() {
  if (!data.der?.length && !data.wer?.length) return null;
  return make("section", { id: "results" }, make("h2", {}, "Results"),
    data.der?.length && derTable(data.der), data.der?.length && make("div", { class: "grid" }, bySpeakers(data.der), derParts(data.der)),
    data.wer?.length && werTable(data.wer));
}

const systemName = (row) => (row.variant ? `${row.system} (${row.variant})` : row.system);

function derTable(rows) {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row.by_speakers).map((n) => `${row.test_set} ${n} spk`).concat(`${row.test_set} all`)))];
  const lines = new Map();
  for (const row of rows) {
    const key = JSON.stringify([systemName(row), row.postprocessing]);
    const cells = lines.get(key) ?? {};
    for (const [n, counts] of Object.entries(row.by_speakers)) cells[`${row.test_set} ${n} spk`] = counts.der;
    cells[`${row.test_set} all`] = row.overall.der;
    lines.set(key, cells);
  }
  const body = [...lines].map(([key, cells]) => [...JSON.parse(key), ...columns.map((column) => percent(cells[column]))]);
  const settings = [...new Set(rows.map((row) => `${row.test_set}: collar ${row.settings.collar} s on each side, overlap ${row.settings.skip_overlap ? "not " : ""}scored, UEM ${row.settings.uem}, scorer ${row.settings.scorer}`))];
  return panel("Diarization error rate (%), as in Table 1", table(["system", "postprocessing", ...columns], body, 2),
    make("ul", { class: "notes" }, settings.map((text) => make("li", {}, text))));
}

const PARTS = ["miss", "false_alarm", "confusion"];

function bySpeakers(rows) {
  const bars = rows.flatMap((row) => Object.entries({ ...row.by_speakers, all: row.overall }).map(([n, counts]) => ({ row, n, counts })));
  bars.sort((a, b) => (a.n === "all") - (b.n === "all") || a.n - b.n);
  const highest = Math.max(...bars.map((bar) => bar.counts.der ?? 0)) || 1;
  const several = new Set(rows.map((row) => row.system)).size > 1 || new Set(rows.map((row) => row.test_set)).size > 1;
  return panel("DER by number of speakers", errorLegend(),
    make("div", { style: "display:grid;grid-template-columns:auto minmax(0,1fr) auto;gap:.3rem .7rem;align-items:center" },
      bars.slice(0, 40).flatMap(({ row, n, counts }) => [
        make("span", { class: "small" }, `${several ? `${row.test_set}, ` : ""}${n === "all" ? "all" : `${n} speakers`}, ${row.postprocessing}`),
        errorBar(counts, highest, "14px"),
        make("b", { class: "small", style: "text-align:right" }, `${percent(counts.der, 1)} %`)])));
}

function errorBar(counts, highest, height) {
  return make("div", { class: "errors", style: height ? `height:${height}` : "" },
    PARTS.map((part, index) => make("i", { class: ERRORS[index][1], style: `width:${(100 * Math.min(1, (counts[part] ?? 0) / highest)).toFixed(2)}%` })));
}

function derParts(rows) {
  const parts = [["DER", (all) => percent(all.der)], ["95 % interval", (all) => all.interval?.map((value) => percent(value, 1)).join(" – ") ?? "–"],
    ...PARTS.map((part, index) => [ERRORS[index][0], (all) => percent(all[part])]), ["JER", (all) => percent(all.jer)],
    ["sessions with the right number of speakers", (all) => percent(all.speaker_count_accuracy)], ["sessions", (all) => all.n_sessions], ["hours scored", (all) => hours(all.scored_seconds / 3600)]];
  return panel("What it is made of (%)", table(["", ...rows.map((row) => `${row.test_set}, ${row.postprocessing}`)],
    parts.map(([name, value]) => [name, ...rows.map((row) => value(row.overall))])));
}

function werTable(rows) {
  const name = { wer: "WER", cpwer: "cpWER", tcpwer: "tcpWER", orcwer: "ORC-WER" };
  const body = rows.map((row) => [systemName(row), row.test_set, name[row.settings.metric] ?? row.settings.metric,
    percent(row.overall[row.settings.metric] ?? row.overall.errors / row.overall.words),
    row.overall.words, row.overall.substitutions, row.overall.insertions, row.overall.deletions]);
  const settings = [...new Set(rows.map((row) => `${name[row.settings.metric] ?? row.settings.metric}: ` +
    Object.entries(row.settings).filter(([key]) => key !== "metric").map((pair) => pair.join(" ")).join(", ")))];
  return panel("Word error rates (%), as in Tables 2 and 3",
    table(["system", "test set", "score", "rate", "words", "substituted", "inserted", "deleted"], body, 3),
    make("ul", { class: "notes" }, settings.map((text) => make("li", {}, text))));
}

function cards() {
  const found = [];
  const best = data.der?.filter((row) => !row.variant).at(-1);
  if (best) found.push([`${percent(best.overall.der, 1)} %`, `DER on ${best.test_set}, postprocessing ${best.postprocessing}`]);
  for (const metric of ["cpwer", "wer"]) {
    const row = data.wer?.find((one) => one.settings.metric === metric && !one.variant);
    if (row) found.push([`${percent(row.overall.errors / row.overall.words, 1)} %`, `${metric === "wer" ? "WER" : "cpWER"} on ${row.test_set}`]);
  }
  if (best) found.push([percent(best.overall.speaker_count_accuracy, 0) + " %", "sessions with the right number of speakers"]);
  if (data.sessions?.length) found.push([String(data.sessions.length), "scored sessions"]);
  const train = data.simulation?.sets.find((set) => set.set === "train");
  if (train) found.push([`${hours(train.hours)} h`, "simulated to train on"]);
  return found.length ? make("div", { class: "cards" }, found.map(([value, name]) => make("div", { class: "card" }, make("b", {}, value), make("span", {}, name)))) : null;
}

// --------------------------------------------------------------------------------------------------------------------
// Training, tuning, data, settings

const CURVES = [
  { title: "Loss", from: "train", names: { loss: "total", sort: "sort", pil: "PIL", speaker: "speaker", text: "text", words: "words" } },
  { title: "Validation (%)", from: "valid", names: { der: "DER", der_unmapped: "DER in arrival order", der_as_is: "DER in arrival order", wer: "WER", cpwer: "cpWER" }, format: (value) => percent(value, 1), dots: true },
  { title: "Right (%)", from: "train", names: { arrival_accuracy: "arrival order", speaker_accuracy: "speaker", token_accuracy: "tokens", order_right: "arrival order", speaker_right: "speaker", tokens_right: "tokens" }, format: (value) => percent(value, 0) },
  { title: "Learning rate", from: "train", names: { learning_rate: "learning rate" } },
  { title: "Speed: seconds of audio per second", from: "train", names: { audio_per_second: "speed" } },
  { title: "Norm of the gradient", from: "train", names: { grad_norm: "norm" } },
];

function training() {
  if (!data.training?.length) return null;
  return make("section", { id: "training" }, make("h2", {}, "Training"), data.training.map((model) => {
    const charts = CURVES.map((curve) => {
      const series = Object.keys(curve.names).filter((name) => model[curve.from][name]?.length)
        .map((name, index) => ({ name: curve.names[name], points: model[curve.from][name], colour: LINES[index] }));
      return series.length ? lineChart(curve.title, series, { phases: model.phases, xEnd: model.steps, format: curve.format, dots: curve.dots }) : null;
    });
    const phases = model.phases.map((phase) => phase.name).join(", then ");
    return make("div", { style: "margin-bottom:1.2rem" },
      make("p", {}, make("b", {}, model.name), make("span", { class: "soft" }, ` · ${model.steps} steps: ${phases}`)), make("div", { class: "grid" }, charts));
  }));
}

function tuning() {
  const study = data.tuning;
  if (!study) return null;
  let lowest = Infinity;
  const best = study.history.map(({ trial, der }) => [trial, (lowest = Math.min(lowest, der))]);
  const low = lowest, ceiling = Math.max(2 * low, low + 0.01), last = study.history.at(-1)?.trial || 1;
  const { svg, x, y } = axes(last, low, Math.min(ceiling, Math.max(...study.history.map((one) => one.der))), { format: (value) => percent(value, 1) });
  svg.setAttribute("aria-label", "DER of each trial");
  for (const { trial, der } of study.history) if (der <= ceiling) svg.append(draw("circle", { cx: x(trial), cy: y(der), r: 2.3, fill: "var(--wave)" }));
  svg.append(draw("polyline", { points: best.filter(([, der]) => der <= ceiling).map(([trial, der]) => `${x(trial)},${y(der)}`).join(" "), fill: "none", stroke: "var(--speaker-1)", "stroke-width": 2 }));
  const importance = Object.entries(study.importance ?? {}).sort((a, b) => b[1] - a[1]);
  return make("section", { id: "tuning" }, make("h2", {}, "Search for postprocessing"),
    make("p", { class: "soft" }, `DER on the development set: ${percent(study.der_before)} % without, ${percent(study.der_after)} % with postprocessing.`),
    make("div", { class: "grid" },
      panel(`DER (%) of ${study.history.length} trials`, svg, legend([["a trial", "var(--wave)"], ["lowest so far", "var(--speaker-1)"]])),
      panel("The six values", table(["parameter", "value"], Object.entries(study.values).map(([name, value]) => [name, String(value)]))),
      panel("How much each one matters", make("div", { style: "display:grid;grid-template-columns:auto minmax(0,1fr) auto;gap:.45rem .7rem;align-items:center" },
        importance.flatMap(([name, share]) => [make("span", { class: "small" }, name),
          make("div", { class: "errors", style: "height:14px" }, make("i", { style: `width:${100 * share}%;background:var(--accent)` })),
          make("b", { class: "small" }, `${percent(share, 0)} %`)])),
        study.presets && make("p", { class: "small soft", style: "margin:1rem 0 0" }, "Presets: ", Object.entries(study.presets).map(([name, der]) => `${name} ${percent(der)} %`).join(", ")))));
}

function dataPages() {
  if (!data.cleaning && !data.simulation?.sets.length) return null;
  return make("section", { id: "data" }, make("h2", {}, "Data"),
    data.simulation?.sets.length ? simulation(data.simulation) : null, data.cleaning && cleaning(data.cleaning));
}

function simulation({ target, sets }) {
  const charts = [["overlap", "Overlap of speech (%), by session", (value) => percent(value, 0)], ["silence", "Silence (%), by session", (value) => percent(value, 0)],
    ["turns", "Length of turns (s)", short]].map(([key, title, format]) => {
    const highest = sets[0][key].highest;
    const shares = sets.map((set) => set[key].counts.map((count) => count / (set[key].counts.reduce((a, b) => a + b, 0) || 1)));
    const { svg, x, y } = axes(highest, 0, Math.max(...shares.flat(), 0.01), { format: (value) => `${percent(value, 0)}`, xFormat: format });
    svg.setAttribute("aria-label", title);
    shares.forEach((own, index) => {
      const points = own.flatMap((share, bin) => [[bin, share], [bin + 1, share]]).map(([bin, share]) => `${x((bin * highest) / own.length).toFixed(1)},${y(share).toFixed(1)}`);
      svg.append(draw("polyline", { points: points.join(" "), fill: "none", stroke: LINES[index % LINES.length], "stroke-width": 1.8 }));
    });
    const wanted = target[key];
    if (wanted != null) svg.append(draw("line", { class: "target", x1: x(wanted), x2: x(wanted), y1: CHART.top, y2: CHART.height - CHART.bottom }));
    const summary = sets.map((set, index) => [`${set.set}: ${key === "turns" ? `median ${short(set[key].median)} s` : `mean ${percent(set[key].mean, 1)} %`}`, LINES[index % LINES.length]]);
    return panel(title, svg, legend(wanted != null ? [...summary, [`target ${percent(wanted, 1)} %`, "var(--text)"]] : summary));
  });
  return [make("p", { class: "soft" }, `Simulated conversations, against what was asked for: ${sets.map((set) => `${set.set} ${hours(set.hours)} h in ${set.sessions} sessions`).join(", ")}. ` +
    "Curves are shares of sessions, or of turns (%)."), make("div", { class: "grid" }, charts)];
}

function cleaning(parts) {
  const rules = [...new Set(parts.flatMap((part) => Object.keys(part.dropped)))].sort();
  const names = { diar: "diarizer", asr: "ASR" };
  const body = parts.map((part) => [part.set, names[part.use], hours(part.hours_in), hours(part.hours_out), part.pieces_out, ...rules.map((rule) => (part.dropped[rule] ? hours(part.dropped[rule]) : "–"))]);
  return panel("Hours kept, and dropped by each rule",
    table(["set", "for the", "hours in", "kept", "pieces", ...rules.map((rule) => rule.replaceAll("_", " "))], body, 2));
}

function settings() {
  const versions = Object.entries(data.about?.versions ?? {}).map((pair) => pair.join(" ")).join(", ");
  if (!data.settings?.length && !versions) return null;
  return make("section", { id: "settings" }, make("h2", {}, "Settings"), make("div", { class: "panel" },
    versions && make("p", { class: "small soft" }, versions),
    data.settings?.length && make("details", {}, make("summary", {}, `All ${data.settings.length} settings of the recipe that count here`),
      make("table", {}, make("tbody", {}, data.settings.map(([key, value]) => make("tr", {}, make("td", {}, make("code", {}, key)),
        make("td", { class: "wrap" }, make("code", {}, typeof value === "string" ? value || '""' : JSON.stringify(value))))))))));
}

// --------------------------------------------------------------------------------------------------------------------
// One session: lanes on a canvas, a clock, words

const LANE = 20, GAP = 4, HEAD = 20, WAVE = 64, HEAT = 14, MARK = 13, AXIS = 22;
const SPEEDS = ["0.5", "0.75", "1", "1.5", "2"];
const TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200];
const SHOWN_SECONDS = 60; // of a long session, to begin with
const TILE = 4096; // frames of a picture: browsers limit the width of a canvas

class SessionView {
  constructor(place) {
    this.place = place;
    this.audio = new Audio();
    this.playing = false;
    this.time = 0;
    this.speed = 1;
    this.canvas = make("canvas", { class: "lanes", tabindex: 0, role: "img", "aria-label": "who speaks when" });
    this.canvas.addEventListener("pointerdown", (event) => this.drag(event));
    this.canvas.addEventListener("pointermove", (event) => event.buttons && this.drag(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.audio.addEventListener("ended", () => this.pause());
    new ResizeObserver(() => this.paint()).observe(this.canvas);
  }

  show(row) {
    this.pause();
    this.row = row;
    this.view = row.view;
    this.time = 0;
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = null;
    this.audio.removeAttribute("src");
    if (!this.view) {
      this.place.replaceChildren(this.head(), make("p", { class: "soft" }, "This session's turns are not in the page, which has room for some only: the worst, the middle and the best."));
      return;
    }
    if (this.view.audio) {
      this.url = URL.createObjectURL(new Blob([bytes(this.view.audio)], { type: "audio/ogg" }));
      this.audio.src = this.url;
    }
    this.peaks = this.view.peaks ? bytes(this.view.peaks) : null;
    this.colours = this.assignColours();
    this.heat = null;
    this.from = 0;
    this.to = Math.min(this.view.duration, SHOWN_SECONDS);
    this.words = [];
    this.place.replaceChildren(this.head(), this.player(), this.canvas, this.notes(), ...this.texts());
    this.paint();
  }

  head() {
    const row = this.row, parts = [];
    if (row.der != null) parts.push(make("b", {}, `DER ${percent(row.der)} %`), ...ERRORS.map(([name], index) => `${name} ${percent(row[PARTS[index]])} %`));
    if (row.cpwer != null) parts.push(`cpWER ${percent(row.cpwer, 1)} %`);
    if (row.ref_speakers != null) parts.push(`${row.hyp_speakers} of ${row.ref_speakers} speakers found`);
    else if (row.hyp_speakers != null) parts.push(`${row.hyp_speakers} speaker${row.hyp_speakers === 1 ? "" : "s"}`);
    return make("div", { class: "head" }, make("h3", {}, row.id), parts.map((part) => make("span", { class: "small" }, part)));
  }

  player() {
    this.button = make("button", { class: "main", id: "play", onclick: () => this.toggle() }, "▶ Play");
    this.clock = make("span", { class: "time", id: "time" }, "");
    const speed = make("select", { "aria-label": "speed", onchange: (event) => this.setSpeed(+event.target.value) },
      SPEEDS.map((value) => make("option", { value, selected: +value === this.speed }, `${value} ×`)));
    return make("div", { class: "player" }, this.button, this.clock, speed, make("span", { class: "space" }),
      make("button", { onclick: () => this.zoom(0.5), "aria-label": "zoom in" }, "+"),
      make("button", { onclick: () => this.zoom(2), "aria-label": "zoom out" }, "−"),
      make("button", { onclick: () => this.zoom(Infinity) }, "all"));
  }

  notes() {
    const { view } = this, sentences = [];
    if (!view.audio) sentences.push("This session has no sound in this page; it plays silently.");
    else if (view.audio_seconds < view.duration - 1) sentences.push(`Only its first ${clock(view.audio_seconds)} have sound in this page.`);
    return make("div", {}, view.reference.length ? errorLegend() : null,
      sentences.map((text) => make("p", { class: "small soft", style: "margin:.3rem 0 0" }, text)),
      make("p", { class: "small soft keys", style: "margin:.4rem 0 0" }, make("kbd", {}, "space"), " play  ", make("kbd", {}, "←"), " ", make("kbd", {}, "→"), " 1 s  ",
        data.sessions.length > 1 ? [make("kbd", {}, "j"), " ", make("kbd", {}, "k"), " next and previous session  "] : null, make("kbd", {}, "+"), " ", make("kbd", {}, "−"), " zoom"));
  }

  // A hypothesis speaker has the colour of the reference speaker for whom it stands.
  assignColours() {
    const { reference, hypothesis, mapping } = this.view, colours = { reference: {}, hypothesis: {} };
    reference.forEach((lane, index) => (colours.reference[lane.speaker] = index % 8));
    let next = reference.length;
    for (const lane of hypothesis) colours.hypothesis[lane.speaker] = mapping[lane.speaker] != null ? colours.reference[mapping[lane.speaker]] : next++ % 8;
    return colours;
  }

  // ------------------------------------------------------------------------------------------------------------------
  // Time

  toggle() { (this.playing ? this.pause() : this.play()); }

  play() {
    if (!this.view) return;
    if (this.time >= this.view.duration - 0.05) this.seek(0);
    this.playing = true;
    this.button.textContent = "❚❚ Pause";
    this.last = performance.now();
    if (this.hasSound()) {
      this.audio.playbackRate = this.speed;
      this.audio.play().catch(() => {}); // a browser without a codec: the cursor moves all the same
    }
    requestAnimationFrame((now) => this.tick(now));
  }

  pause() {
    this.playing = false;
    this.audio.pause();
    if (this.button) this.button.textContent = "▶ Play";
  }

  hasSound() { return this.url && !this.audio.error && this.time < (this.view.audio_seconds ?? 0) - 0.01; }

  tick(now) {
    if (!this.playing) return;
    const passed = ((now - this.last) / 1000) * this.speed;
    this.last = now;
    this.time = this.hasSound() && !this.audio.paused ? this.audio.currentTime : this.time + Math.max(0, passed);
    if (this.time >= this.view.duration) {
      this.time = this.view.duration;
      this.pause();
    }
    this.follow();
    this.paint();
    requestAnimationFrame((later) => this.tick(later));
  }

  seek(seconds) {
    if (!this.view) return;
    this.time = Math.max(0, Math.min(this.view.duration, seconds));
    if (this.url && this.time < this.view.audio_seconds) this.audio.currentTime = this.time;
    else this.audio.pause();
    if (this.playing && this.hasSound() && this.audio.paused) this.audio.play().catch(() => {});
    this.follow();
    this.paint();
  }

  setSpeed(speed) {
    this.speed = speed;
    this.audio.playbackRate = speed;
  }

  follow() {
    const width = this.to - this.from;
    if (this.time < this.from || this.time > this.to - 0.02 * width) this.look(this.time - 0.1 * width, width);
  }

  look(from, width) {
    width = Math.max(1, Math.min(this.view.duration, width));
    this.from = Math.max(0, Math.min(this.view.duration - width, from));
    this.to = this.from + width;
  }

  zoom(factor) {
    if (!this.view) return;
    const width = this.to - this.from, wide = Math.min(this.view.duration, width * factor);
    const centre = this.time >= this.from && this.time <= this.to ? this.time : (this.from + this.to) / 2;
    this.look(centre - ((centre - this.from) / width) * wide, wide);
    this.paint();
  }

  drag(event) {
    const box = this.canvas.getBoundingClientRect();
    this.seek(this.from + ((event.clientX - box.left - this.gutter) / (box.width - this.gutter)) * (this.to - this.from));
  }

  wheel(event) {
    const width = this.to - this.from;
    if (event.ctrlKey) this.zoom(event.deltaY > 0 ? 1.25 : 0.8);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.look(this.from + (event.deltaX / 600) * width, width);
      this.paint();
    } else return;
    event.preventDefault();
  }

  // ------------------------------------------------------------------------------------------------------------------
  // The canvas

  paint() {
    const { canvas, view } = this;
    if (!view || !canvas.isConnected || !canvas.clientWidth) return;
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
    this.gutter = width < 560 ? 80 : 132;
    const lanes = this.lanes(), height = lanes.at(-1).bottom + AXIS;
    canvas.style.height = `${height}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const scale = (width - this.gutter) / (this.to - this.from);
    const x = (seconds) => this.gutter + (seconds - this.from) * scale;
    this.paintAxis(context, x, width, height);
    context.save();
    context.beginPath();
    context.rect(this.gutter, 0, width - this.gutter, height);
    context.clip();
    for (const lane of lanes) lane.paint(context, x, lane.top, scale);
    context.fillStyle = this.tone("cursor");
    context.fillRect(x(this.time) - 1, 0, 2, height - AXIS + 4);
    context.restore();
    for (const lane of lanes) this.paintName(context, lane);
    if (this.clock) this.clock.textContent = `${clock(this.time)} / ${clock(view.duration)}`;
    canvas.dataset.time = this.time.toFixed(3);
    this.markWords();
  }

  tone(name) { return (this.tones ??= {})[name] ?? (this.tones[name] = colour(name)); }

  forgetColours() {
    this.tones = null;
    this.heat = null;
    this.paint();
  }

  // What is drawn, from top to bottom.
  lanes() {
    const { view } = this, found = [];
    let top = 0;
    const add = (height, name, paint, gap = GAP, heading = false) => {
      found.push({ top, bottom: top + height, name, paint, heading });
      top += height + gap;
    };
    const heading = (name) => add(HEAD, name, () => {}, 0, true);
    if (this.peaks) add(WAVE, "waveform", (...where) => this.paintWave(...where), 2);
    if (view.reference.length) {
      heading("Reference");
      for (const lane of view.reference) add(LANE, lane.speaker, (...where) => this.paintTurns(lane, "reference", view.spoken, ...where));
    }
    heading(view.reference.length ? "Hypothesis" : "Speakers");
    if (!view.hypothesis.length) add(LANE, "nobody", () => {});
    for (const lane of view.hypothesis) add(LANE, lane.speaker, (...where) => this.paintTurns(lane, "hypothesis", view.heard, ...where));
    if (view.reference.length) {
      heading("Errors");
      ERRORS.forEach(([name, style], kind) => add(MARK, name, (...where) => this.paintMarks(kind, style, ...where), 2));
    }
    if (view.posteriors) {
      heading("Posteriors");
      for (let speaker = 0; speaker < view.posteriors.speakers; speaker++) add(HEAT, `speaker_${speaker}`, (...where) => this.paintHeat(speaker, ...where), 2);
    }
    return found;
  }

  paintName(context, lane) {
    context.textBaseline = "middle";
    context.font = lane.heading ? "600 11px system-ui, sans-serif" : "12px system-ui, sans-serif";
    context.fillStyle = this.tone(lane.heading ? "text" : "soft");
    let name = lane.name;
    while (!lane.heading && name.length > 3 && context.measureText(name).width > this.gutter - 10) name = name.slice(0, -2) + "…";
    context.fillText(name, 0, (lane.top + lane.bottom) / 2 + (lane.heading ? 2 : 1));
  }

  paintAxis(context, x, width, height) {
    const scale = (width - this.gutter) / (this.to - this.from);
    const step = TICKS.find((tick) => tick * scale >= 64) ?? TICKS.at(-1);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    for (let tick = Math.ceil(this.from / step); tick * step <= this.to + 1e-6; tick++) {
      const seconds = +(tick * step).toFixed(3), label = seconds >= 60 ? clock(seconds).replace(/\.0$/, "") : `${seconds} s`;
      context.fillStyle = this.tone("line");
      context.fillRect(x(seconds), 0, 1, height - AXIS + 4);
      context.fillStyle = this.tone("soft");
      const half = context.measureText(label).width / 2;
      context.fillText(label, Math.max(this.gutter, Math.min(width - 2 * half, x(seconds) - half)), height - 5);
    }
  }

  paintWave(context, x, top) {
    const seconds = this.view.audio_seconds / this.peaks.length, middle = top + WAVE / 2;
    const left = x(this.from), right = x(this.to), bar = 2;
    for (let at = left; at < right; at += bar + 1) {
      const perPixel = (this.to - this.from) / (right - left);
      const begin = Math.floor((this.from + (at - left) * perPixel) / seconds);
      const end = Math.max(begin + 1, Math.floor((this.from + (at + bar + 1 - left) * perPixel) / seconds));
      let peak = 0;
      for (let place = begin; place < end && place < this.peaks.length; place++) peak = Math.max(peak, this.peaks[place]);
      if (begin >= this.peaks.length) break;
      const half = Math.max(0.75, (peak / 255) * (WAVE / 2 - 2));
      context.fillStyle = this.tone(this.from + (at - left) * perPixel < this.time ? "wave-past" : "wave");
      context.fillRect(at, middle - half, bar, 2 * half);
    }
  }

  paintTurns(lane, side, words, context, x, top, scale) {
    context.fillStyle = this.tone("shade");
    context.fillRect(x(this.from), top, x(this.to) - x(this.from), LANE);
    context.fillStyle = this.tone(`speaker-${this.colours[side][lane.speaker]}`);
    for (const [start, end] of lane.turns) {
      if (end < this.from || start > this.to) continue;
      context.beginPath();
      context.roundRect(x(start), top + 1, Math.max(1, (end - start) * scale), LANE - 2, 3);
      context.fill();
    }
    if (scale < 80) return;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = this.tone("on-speaker");
    const name = side === "hypothesis" ? this.view.mapping[lane.speaker] ?? lane.speaker : lane.speaker;
    for (const [speaker, start, end, text] of words) {
      if (speaker !== name || end < this.from || start > this.to) continue;
      const room = (end - start) * scale;
      if (context.measureText(text).width <= room + 3) context.fillText(text, x(start) + 1, top + LANE / 2 + 1);
    }
  }

  paintMarks(kind, style, context, x, top, scale) {
    context.fillStyle = this.tone("shade");
    context.fillRect(x(this.from), top, x(this.to) - x(this.from), MARK);
    context.fillStyle = this.tone(style);
    for (const mark of this.view.marks) {
      context.globalAlpha = mark[5] ? 1 : 0.35; // inside a collar, or skipped: the DER does not count it
      if (mark[2 + kind]) context.fillRect(x(mark[0]), top, Math.max(1, (mark[1] - mark[0]) * scale), MARK);
    }
    context.globalAlpha = 1;
  }

  // Each speaker's posteriors are pictures of one line, made once for a theme and stretched.
  paintHeat(speaker, context, x, top, scale) {
    context.fillStyle = this.tone("shade");
    context.fillRect(x(this.from), top, x(this.to) - x(this.from), HEAT);
    const { frame_seconds: seconds } = this.view.posteriors;
    context.imageSmoothingEnabled = false;
    this.heatTiles().forEach((tile, index) => {
      context.drawImage(tile, 0, speaker, tile.width, 1, x(index * TILE * seconds), top, tile.width * seconds * scale, HEAT);
    });
  }

  heatTiles() {
    if (this.heat) return this.heat;
    const { frames, speakers, levels } = this.view.posteriors, packed = bytes(levels);
    const [red, green, blue] = colour("heat").split(",").map(Number);
    this.heat = [];
    for (let first = 0; first < frames; first += TILE) {
      const width = Math.min(TILE, frames - first), tile = make("canvas", { width, height: speakers });
      const context = tile.getContext("2d"), picture = context.createImageData(width, speakers);
      for (let frame = 0; frame < width; frame++) {
        for (let speaker = 0; speaker < speakers; speaker++) {
          const place = (first + frame) * speakers + speaker;
          const level = place % 2 ? packed[place >> 1] & 15 : packed[place >> 1] >> 4;
          picture.data.set([red, green, blue, level * 17], 4 * (speaker * width + frame));
        }
      }
      context.putImageData(picture, 0, 0);
      this.heat.push(tile);
    }
    return this.heat;
  }

  // ------------------------------------------------------------------------------------------------------------------
  // Words

  texts() {
    const { view } = this, pages = [];
    if (view.spoken.length || view.heard.length) pages.push(["Words as spoken", () => this.transcript()]);
    if (view.samples?.length) pages.push(["Word errors (cpWER alignment)", () => this.alignment()]);
    if (!pages.length) return [];
    const body = make("div", {}), buttons = pages.map(([name, build]) => make("button", { onclick: () => open(name, build) }, name));
    const open = (name, build) => {
      this.words = [];
      body.replaceChildren(build());
      buttons.forEach((button) => button.setAttribute("aria-pressed", button.textContent === name));
      this.markWords();
    };
    open(...pages[0]);
    return [make("div", { class: "tabs" }, buttons), body];
  }

  transcript() {
    const { view } = this;
    const sides = [["What was said", view.spoken], ["What was heard", view.heard]].filter(([, words]) => words.length);
    return make("div", { class: "columns" }, sides.map(([title, words]) => make("div", {}, make("h3", {}, title),
      make("div", { class: "turns", tabindex: 0, role: "region", "aria-label": title }, joinTurns(words).map((turn) => this.turn(turn))))));
  }

  // What was heard bears the names of those for whom the speakers were taken.
  turn(words) {
    const index = this.colours.reference[words[0][0]];
    return make("div", { class: "turn" }, make("i", { style: `background:var(--speaker-${index ?? 7})` }), make("div", {},
      make("div", { class: "who" }, `${words[0][0]} · ${clock(words[0][1])}`), words.flatMap(([, start, end, text]) => {
        const element = make("span", { class: "word", onclick: () => this.seek(start) }, text);
        this.words.push({ element, start, end });
        return [element, " "];
      })));
  }

  markWords() {
    for (const word of this.words ?? []) {
      const now = this.time > 0 && word.start <= this.time && this.time < word.end;
      if (now === word.now) continue;
      word.now = now;
      word.element.classList.toggle("now", now);
      const turns = word.element.closest(".turns");
      if (now && this.playing && turns) turns.scrollTop = word.element.offsetTop - turns.clientHeight / 2;
    }
  }

  alignment() {
    return make("div", {}, legend([["deleted", "var(--missed)"], ["inserted", "var(--false-alarm)"], ["substituted: said, then heard", "var(--confusion)"]]),
      this.view.samples.map((sample) => make("div", { class: "sample" },
        make("div", { class: "small soft" }, make("a", { href: "#sessions", onclick: (event) => { event.preventDefault(); this.seek(sample.start); } }, `${clock(sample.start)} – ${clock(sample.end)}`),
          ` · ${sample.errors} errors, ${sample.words} words`),
        sample.speakers.map(([said, heard, pairs]) => make("div", { class: "aligned" },
          make("b", { class: "small soft" }, `${said ?? "nobody"} → ${heard ?? "nobody"} `), pairs.flatMap((pair) => [alignedWord(pair), " "]))))));
  }
}

function alignedWord([said, heard]) {
  if (said === heard) return make("span", {}, said);
  if (heard == null) return make("span", { class: "deleted" }, said);
  if (said == null) return make("span", { class: "inserted" }, heard);
  return make("span", { class: "replaced" }, make("s", {}, said), heard);
}

// Words of one speaker without a long pause are a turn; turns are in the order of their starts.
function joinTurns(words) {
  const turns = [], open = new Map();
  for (const word of words) {
    const own = open.get(word[0]);
    if (own && word[1] - own.at(-1)[2] < 0.8) own.push(word);
    else {
      const turn = [word];
      open.set(word[0], turn);
      turns.push(turn);
    }
  }
  return turns;
}

// --------------------------------------------------------------------------------------------------------------------
// The list of sessions

const ORDERS = {
  "worst DER": (a, b) => (b.der ?? -1) - (a.der ?? -1),
  "best DER": (a, b) => (a.der ?? 9) - (b.der ?? 9),
  "worst cpWER": (a, b) => (b.cpwer ?? -1) - (a.cpwer ?? -1),
  name: (a, b) => a.id.localeCompare(b.id),
  "with sound": (a, b) => !!b.view?.audio - !!a.view?.audio || (b.der ?? -1) - (a.der ?? -1),
};
let view = null, shown = [], current = null;

function sessions() {
  if (!data.sessions?.length) return null;
  const place = make("div", { class: "panel view", id: "view" });
  view = new SessionView(place);
  shown = data.sessions;
  if (data.kind === "recording") return make("section", { id: "sessions" }, make("div", { class: "browser alone" }, place));
  const rows = make("div", { class: "rows", id: "rows" });
  const order = (name) => {
    shown = [...data.sessions].sort(ORDERS[name]);
    rows.replaceChildren(...shown.map(sessionRow));
    markCurrent();
  };
  const known = Object.keys(ORDERS).filter((name) => name !== "worst cpWER" || data.sessions.some((row) => row.cpwer != null));
  const select = make("select", { "aria-label": "order", onchange: (event) => order(event.target.value) }, known.map((name) => make("option", { value: name }, name)));
  order(known[0]);
  const nHeard = data.sessions.filter((row) => row.view?.audio).length;
  return make("section", { id: "sessions" }, make("h2", {}, "Sessions"),
    make("p", { class: "soft" }, `${data.sessions.length} scored sessions, ${nHeard} of them with sound (♪): the worst, the middle and the best.`),
    make("div", { class: "browser" }, make("div", { class: "panel list" }, make("div", { class: "tools" }, make("span", { class: "small soft" }, "order"), select), rows), place));
}

function sessionRow(row) {
  row.element = make("button", { class: "row", onclick: () => choose(row) },
    make("span", { class: "name" }, row.view?.audio ? "♪ " : "", row.id), make("span", { class: "rate" }, row.der == null ? "–" : `${percent(row.der, 1)} %`),
    make("span", { class: "more" }, errorBar(row, 1), `${row.hyp_speakers}/${row.ref_speakers} spk`));
  return row.element;
}

function choose(row) {
  current = row;
  markCurrent();
  view.show(row);
}

function markCurrent() {
  for (const row of shown) row.element?.removeAttribute("aria-current");
  current?.element?.setAttribute("aria-current", "true");
}

function step(by) {
  const next = shown[shown.indexOf(current) + by];
  if (!next) return;
  choose(next);
  const list = document.getElementById("rows"), top = next.element.offsetTop;
  if (top < list.scrollTop || top + next.element.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top - list.clientHeight / 2;
}

const KEYS = {
  " ": () => view.toggle(),
  ArrowLeft: () => view.seek(view.time - 1),
  ArrowRight: () => view.seek(view.time + 1),
  j: () => step(1),
  k: () => step(-1),
  "+": () => view.zoom(0.5),
  "-": () => view.zoom(2),
};

function onKey(event) {
  const act = KEYS[event.key], target = event.target;
  if (!view || !act || event.ctrlKey || event.metaKey || event.altKey || target.matches("select, input, summary")) return;
  // The space bar presses a button that has the focus, but a session's row is left when something plays.
  if (event.key === " " && target.matches("button:not(.row), a")) return;
  event.preventDefault();
  if (event.type === "keydown") act();
}

// --------------------------------------------------------------------------------------------------------------------
// The page

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  view?.forgetColours();
}

function remembered() {
  try { return localStorage.getItem("sortk-theme"); } catch { return null; } // a browser may forbid it to files
}

function toggleTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(theme);
  try { localStorage.setItem("sortk-theme", theme); } catch { /* then it holds until the page is closed */ }
}

function build() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(remembered() ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => remembered() ?? setTheme(dark.matches ? "dark" : "light"));
  const parts = [["Results", results()], ["Sessions", sessions()], ["Training", training()], ["Tuning", tuning()], ["Data", dataPages()], ["Settings", settings()]].filter(([, part]) => part);
  const about = data.about ?? {};
  const nav = parts.length > 1 ? parts.map(([name, part]) => make("a", { href: `#${part.id}` }, name)) : [];
  document.getElementById("page").replaceChildren(
    make("div", { class: "bar" }, make("strong", {}, "sortk"), make("nav", { "aria-label": "parts" }, nav),
      make("button", { id: "theme", onclick: toggleTheme, "aria-label": "dark or light" }, "◐")),
    make("main", {}, make("header", { class: "top" }, make("h1", {}, data.title),
      data.kind === "experiment" && make("span", { class: "soft" }, [about.commit && `commit ${about.commit}`, about.date].filter(Boolean).join(", ")),
      data.missing?.length ? make("span", { class: "soft small" }, `Not in this experiment, so not shown: ${data.missing.join(", ")}`) : null),
    cards(), parts.map(([, part]) => part)));
  addEventListener("keydown", onKey);
  addEventListener("keyup", (event) => event.key === " " && event.target.matches("button.row") && event.preventDefault());
  if (view) choose(shown[0]);
}

build();
