// The page of a report: reads the JSON in the element #report and draws it. It uses no library and no network.
"use strict";

const data = JSON.parse(document.getElementById("report").textContent);

// --------------------------------------------------------------------------------------------------------------------
// Elements, numbers, files

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
const percentTick = (rate) => short(100 * rate);  // of an axis: as many places as its ticks need
const hours = (value) => (value >= 10 ? value.toFixed(0) : value >= 0.1 ? value.toFixed(2) : value.toFixed(3));

// 0:07.3, 12:00.0, 1:02:03.4; rounded before it is split, so that it never shows 60 seconds.
function clock(seconds) {
  const tenths = Math.round(10 * seconds), minutes = Math.floor(tenths / 600), pad = (text) => String(text).padStart(2, "0");
  const rest = ((tenths % 600) / 10).toFixed(1).padStart(4, "0");
  return minutes < 60 ? `${minutes}:${rest}` : `${Math.floor(minutes / 60)}:${pad(minutes % 60)}:${rest}`;
}

const plural = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// Terms are explained by a tooltip where they are used, and in a list below the results, since phones have no tooltips.
const TERMS = {
  DER: "Diarization error rate: missed speech, false alarms and speech given to the wrong speaker, divided by all reference speech. It can exceed 100 %.",
  JER: "Jaccard error rate: as DER, but averaged over speakers, so that quiet speakers count as much as talkative ones.",
  cpWER: "Concatenated minimum-permutation word error rate: word errors when the words of each speaker are joined and speakers are matched in the best way.",
  WER: "Word error rate: substituted, inserted and deleted words, divided by the number of reference words.",
  collar: "Time on each side of a reference boundary that is not scored.",
  UEM: "The list of time spans that are scored.",
  missed: "Speech of a speaker that the system did not find.",
  "false alarm": "A speaker found by the system where there is no such speech.",
  confusion: "Speech that the system gave to the wrong speaker.",
  posteriors: "The probability of each speaker in each frame, as the model estimates it.",
};
const term = (name, text = name) => make("abbr", { title: TERMS[name] }, text);

function download(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

const csv = (rows) => rows.map((row) => row.map((cell) => {
  const text = cell == null ? "" : String(cell);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}).join(",") + "\n").join("");

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
  return make("div", { class: "panel" }, title ? make("h3", {}, title) : null, ...children);
}

const ERRORS = [["missed", "missed"], ["false alarm", "false-alarm"], ["confusion", "confusion"]];
const errorLegend = (...more) => make("div", { class: "legend" }, ERRORS.map(([name, style]) =>
  make("span", {}, make("i", { style: `background:var(--${style})` }), term(name))), more.filter(Boolean).map((item) => make("span", {}, item)));

// --------------------------------------------------------------------------------------------------------------------
// Charts

const CHART = { width: 400, height: 220, left: 46, right: 10, top: 14, bottom: 38 };

function ticks(low, high, n = 4) {
  const rough = (high - low) / n || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9 * step; value += step) found.push(+value.toPrecision(12));
  return found;
}

// Returns axes and their scales; y goes from `low` to `high`. `name` and `yName` are written beside the axes.
function axes(xEnd, low, high, { name = "", yName = "", format = short, xFormat = short, xStart = 0 } = {}) {
  const { width, height, left, right, top, bottom } = CHART;
  const x = (value) => left + ((value - xStart) / (xEnd - xStart || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low || 1)) * (height - top - bottom);
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const value of ticks(low, high)) {
    svg.append(draw("line", { class: "grid-line", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  for (const value of ticks(xStart, xEnd, 5)) {
    svg.append(draw("text", { x: x(value), y: height - bottom + 16, "text-anchor": "middle" }, xFormat(value)));
  }
  svg.append(draw("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, name), draw("text", { x: left, y: top - 4 }, yName));
  return { svg, x, y };
}

function lineChart(title, series, { phases = [], xEnd, format = short, tick = short, dots = false } = {}) {
  const values = series.flatMap((line) => line.points.map((point) => point[1]));
  // A spike would flatten the rest of the curve, so the axis ends at twice the 95th percentile; a label gives the peak.
  const sorted = [...values].sort((a, b) => a - b), peak = sorted.at(-1);
  const high = Math.min(peak, 2 * sorted[Math.floor(0.95 * (sorted.length - 1))] || Infinity);
  const { svg, x, y } = axes(xEnd, Math.min(0, sorted[0]), high || 1, { name: "step", format: tick });
  svg.setAttribute("aria-label", title);
  if (peak > high) svg.append(draw("text", { x: CHART.width - CHART.right, y: CHART.top - 4, "text-anchor": "end" }, `▲ cut off; highest value ${format(peak)}`));
  for (const phase of phases) {
    if (phase.x > 0) svg.append(draw("line", { class: "phase", x1: x(phase.x), x2: x(phase.x), y1: CHART.top, y2: CHART.height - CHART.bottom }));
  }
  for (const line of series) {
    const points = line.points.map(([at, value]) => `${x(at).toFixed(1)},${y(Math.min(value, high)).toFixed(1)}`);
    svg.append(draw("polyline", { points: points.join(" "), fill: "none", stroke: line.colour, "stroke-width": 1.8, "stroke-linejoin": "round" }));
    if (dots || points.length === 1) svg.append(...points.map((point) => draw("circle", { cx: point.split(",")[0], cy: point.split(",")[1], r: 3.2, fill: line.colour })));
  }
  const cursor = draw("line", { class: "phase", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
  svg.append(cursor);
  const names = series.map((line) => make("span", {}, make("i", { style: `background:${line.colour}` }), line.name, " ", make("b", {}, "")));
  const showValues = (at) => series.forEach((line, index) => {
    const near = line.points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
    names[index].lastChild.textContent = format(near[1]);
  });
  showValues(xEnd);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const along = ((event.clientX - box.left) / box.width) * CHART.width;
    const at = Math.max(0, Math.min(xEnd, ((along - CHART.left) / (CHART.width - CHART.left - CHART.right)) * xEnd));
    cursor.setAttribute("x1", x(at));
    cursor.setAttribute("x2", x(at));
    cursor.setAttribute("visibility", "visible");
    showValues(at);
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    showValues(xEnd);
  });
  return panel(title, svg, make("div", { class: "legend" }, names));
}

const LINES = [0, 1, 2, 3, 4, 5, 6, 7].map((index) => `var(--speaker-${index})`);

// --------------------------------------------------------------------------------------------------------------------
// Results

function results() {
  if (!data.der?.length && !data.wer?.length) return null;
  return make("section", { id: "results" }, make("h2", {}, "Results"),
    data.der?.length ? [derTable(data.der), make("div", { class: "grid" }, make("div", { class: "stack" }, bySpeakers(data.der), arrivalOrder(data.der)), derParts(data.der))] : null,
    data.wer?.length ? werTable(data.wer) : null,
    make("details", { class: "terms" }, make("summary", {}, "What the terms mean"),
      make("dl", {}, Object.entries(TERMS).flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]))));
}

const TEST_SETS = new Set((data.der ?? []).map((row) => row.test_set));
const systemName = (row) => (row.variant ? `${row.system} (${row.variant})` : row.system);
const postprocessingName = (row) => (row.postprocessing === "none" ? "no postprocessing" : row.postprocessing);
const columnName = (row, n) => (TEST_SETS.size > 1 ? `${row.test_set}, ` : "") + (n === "all" ? "all" : plural(+n, "speaker"));
const rowName = (row) => (data.kind === "comparison" ? row.system
  : [row.is_initial && "initial model", row.variant, TEST_SETS.size > 1 && row.test_set, postprocessingName(row)].filter(Boolean).join(", "));

// The rates of a row for all sessions, and for each number of speakers with scored speech.
const ratesOf = (row) => [["all", row.overall], ...Object.entries(row.by_speakers).filter(([, counts]) => counts.der != null)];

function derTable(rows) {
  const columns = [...new Set(rows.flatMap((row) => ratesOf(row).map(([n]) => columnName(row, n))))];
  const lines = new Map();
  for (const row of rows) {
    const key = JSON.stringify([systemName(row), row.postprocessing]);
    if (!lines.has(key)) lines.set(key, {});
    for (const [n, counts] of ratesOf(row)) lines.get(key)[columnName(row, n)] = counts.der;
  }
  const isProcessed = rows.some((row) => row.postprocessing), texts = isProcessed ? 2 : 1;
  const body = [...lines].map(([key, cells]) => [...JSON.parse(key).slice(0, texts), ...columns.map((column) => percent(cells[column]))]);
  const settings = rows.map((row) => [`${row.test_set}: `, term("collar"), ` ${row.settings.collar} s on each side, overlap ${row.settings.skip_overlap ? "not " : ""}scored, `, term("UEM"), ` ${row.settings.uem}, scorer ${row.settings.scorer}`])
    .map((parts) => [parts.map((part) => part.textContent ?? part).join(""), parts]);
  const notes = Object.entries(data.notes ?? {}).flatMap(([name, own]) => own.map((note) => (rows.length > 1 ? `${name}: ${note}` : note)));
  return panel(["Diarization error rate (", term("DER"), ", %)"], table(["system", ...(isProcessed ? ["postprocessing"] : []), ...columns], body, texts),
    make("ul", { class: "notes" }, [...new Map(settings).values()].map((parts) => make("li", {}, parts)), notes.map((note) => make("li", {}, note))));
}

const PARTS = ["miss", "false_alarm", "confusion"];

// A bar for each system, test set and number of speakers. Where a system was scored with and without postprocessing, the
// bar is the rate with it, and a mark shows the rate without.
function bySpeakers(rows) {
  const systems = new Map();
  for (const row of rows) {
    const key = JSON.stringify([systemName(row), row.test_set]);
    systems.set(key, { without: systems.get(key)?.row ?? null, row });
  }
  const bars = [...systems.values()].flatMap(({ row, without }) => ratesOf(row).map(([n, counts]) =>
    ({ row, n, counts, without: n === "all" ? without?.overall : without?.by_speakers[n] })));
  const order = ({ n }) => (n === "all" ? 0 : +n);
  bars.sort((a, b) => order(a) - order(b));
  const several = new Set(rows.map(systemName)).size > 1, hasMarks = bars.some((bar) => bar.without);
  return panel("DER by number of speakers", errorLegend(hasMarks ? [make("i", { class: "mark" }), "without postprocessing"] : null, `a full bar is ${percent(BAR_SCALE, 0)} %`),
    make("div", { class: "bars" }, bars.slice(0, 60).flatMap(({ row, n, counts, without }) => [
      make("span", { class: "small" }, columnName(row, n), several ? make("span", { class: "soft" }, `, ${row.is_initial ? "initial model" : row.variant || row.system}`) : null),
      errorBar(counts, "14px", without),
      make("b", { class: "small", style: "text-align:right" }, `${percent(counts.der, 1)} %`)])));
}

// All bars of DER have one scale: the worst rate, rounded up to 5 %, and at most 100 %.
const BAR_SCALE = Math.min(1, Math.max(0.05, Math.ceil(20 * Math.max(0, ...(data.der ?? []).flatMap((row) => [row.overall, ...Object.values(row.by_speakers)]).map((counts) => counts.der ?? 0),
  ...(data.sessions ?? []).map((row) => row.der ?? 0)) - 1e-9) / 20));

function errorBar(counts, height = "", without = null) {
  const width = (rate) => `${(100 * Math.min(1, (rate ?? 0) / BAR_SCALE)).toFixed(2)}%`;
  const title = PARTS.map((part, index) => `${ERRORS[index][0]} ${percent(counts[part], 1)} %`).join(", ") + (without ? `; DER without postprocessing ${percent(without.der, 1)} %` : "");
  return make("div", { class: "errors", style: height && `height:${height}`, title }, PARTS.map((part, index) => make("i", { class: ERRORS[index][1], style: `width:${width(counts[part])}` })),
    without?.der != null ? make("i", { class: "mark", style: `left:min(${width(without.der)}, 100% - 3px)` }) : null);
}

// How often speakers who arrive one after the other are in that order, by the time between their arrivals. Close
// arrivals are the hard case. A PIL model has no order to be right about.
function arrivalOrder(rows) {
  const known = rows.filter((row) => row.arrival?.sessions?.n);
  if (!known.length) return null;
  const counts = ({ n, right }) => make("span", { class: "small soft" }, `${right} of ${n}`);
  return panel("Correct arrival order (%), by time between two arrivals", known.map((row) => [known.length > 1 ? make("h4", {}, rowName(row)) : null,
    make("div", { class: "bars four" }, [...Object.entries(row.arrival.pairs), ["complete sessions", row.arrival.sessions]].filter(([, tally]) => tally.n).flatMap(([name, tally]) => [
      make("span", { class: "small" }, name),
      make("div", { class: "errors", style: "height:14px" }, make("i", { style: `width:${100 * tally.accuracy}%;background:var(--accent)` })),
      make("b", { class: "small", style: "text-align:right" }, `${percent(tally.accuracy, 0)} %`), counts(tally)]))]));
}

function derParts(rows) {
  const parts = [[term("DER"), (all) => percent(all.der)], ["95 % interval", (all) => all.interval?.map((value) => percent(value, 1)).join("–") ?? "–"],
    ...PARTS.map((part, index) => [term(ERRORS[index][0]), (all) => percent(all[part])]), [term("JER"), (all) => percent(all.jer)],
    [make("span", { title: "sessions in which the system found as many speakers as the reference has" }, "right number of speakers"), (all) => percent(all.speaker_count_accuracy)], ["sessions", (all) => all.n_sessions], ["hours scored", (all) => hours(all.scored_seconds / 3600)]];
  return panel("DER breakdown (%)", table(["", ...rows.map(rowName)],
    parts.map(([name, value]) => [name, ...rows.map((row) => value(row.overall))])));
}

function werTable(rows) {
  const name = { wer: "WER", cpwer: "cpWER", tcpwer: "tcpWER", orcwer: "ORC-WER" };
  const several = new Set(rows.map((row) => row.test_set)).size > 1;
  const body = rows.map((row) => [systemName(row), ...(several ? [row.test_set] : []), name[row.settings.metric] ?? row.settings.metric,
    percent(row.overall[row.settings.metric] ?? row.overall.errors / row.overall.words),
    row.overall.words, row.overall.substitutions, row.overall.insertions, row.overall.deletions]);
  const settings = [...new Set(rows.map((row) => `${name[row.settings.metric] ?? row.settings.metric}: ` +
    Object.entries(row.settings).filter(([key]) => key !== "metric").map((pair) => pair.join(" ")).join(", ")))];
  return panel(["Word error rates (", term("WER"), ", ", term("cpWER"), ", %)"],
    table(["system", ...(several ? ["test set"] : []), "score", "rate", "words", "substituted", "inserted", "deleted"], body, several ? 3 : 2),
    make("ul", { class: "notes" }, settings.map((text) => make("li", {}, text))));
}

function cards() {
  const found = [];
  const best = data.der?.filter((row) => !row.variant && !row.is_initial).at(-1);
  const initial = data.der?.find((row) => row.is_initial && row.test_set === best?.test_set);
  if (data.kind === "comparison") found.push(...data.der.slice(0, 6).map((row) => [`${percent(row.overall.der, 1)} %`, `DER of ${row.system}`]));
  else if (best) found.push([`${percent(best.overall.der, 1)} %`, `DER on ${best.test_set}, ${best.postprocessing === "tuned" ? "tuned postprocessing" : postprocessingName(best)}`]);
  if (initial) found.push([`${percent(initial.overall.der, 1)} %`, "DER of the initial model"]);
  for (const metric of ["cpwer", "wer"]) {
    const row = data.wer?.find((one) => one.settings.metric === metric && !one.variant);
    if (row) found.push([`${percent(row.overall.errors / row.overall.words, 1)} %`, `${metric === "wer" ? "WER" : "cpWER"} on ${row.test_set}`]);
  }
  if (best && data.kind !== "comparison") found.push([percent(best.overall.speaker_count_accuracy, 0) + " %", "sessions with the right number of speakers"]);
  if (data.kind === "recording") found.push(...recordingCards(data.sessions[0].view));
  else if (data.sessions?.length) found.push([String(data.sessions.length), data.sessions.length === 1 ? "scored session" : "scored sessions"]);
  const train = data.simulation?.sets.find((set) => set.set === "train");
  if (train) found.push([`${hours(train.hours)} h`, "of simulated training data"]);
  return found.length ? make("div", { class: "cards" }, found.map(([value, name]) => make("div", { class: "card" }, make("b", {}, value), make("span", {}, name)))) : null;
}

function recordingCards(view) {
  const speech = union(view.hypothesis.flatMap((lane) => lane.turns));
  return [[clock(view.duration), "duration"], [String(view.hypothesis.length), view.hypothesis.length === 1 ? "speaker" : "speakers"],
    [clock(speech), "of speech"], [`${percent(overlap(view.hypothesis) / (speech || 1), 1)} %`, "of the speech is overlapped"]];
}

const total = (turns) => turns.reduce((sum, [start, end]) => sum + end - start, 0);

function union(turns) {
  let seconds = 0, reached = -Infinity;
  for (const [start, end] of [...turns].sort((a, b) => a[0] - b[0])) {
    seconds += Math.max(0, end - Math.max(start, reached));
    reached = Math.max(reached, end);
  }
  return seconds;
}

// Returns the time with two or more speakers: a sweep over starts (+1) and ends (-1). Turns of one speaker do not overlap.
function overlap(lanes) {
  const edges = lanes.flatMap((lane) => lane.turns.flatMap(([start, end]) => [[start, 1], [end, -1]])).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let seconds = 0, active = 0, since = 0;
  for (const [at, change] of edges) {
    if (active > 1) seconds += at - since;
    active += change;
    since = at;
  }
  return seconds;
}

// --------------------------------------------------------------------------------------------------------------------
// Training, tuning, data, settings

const CURVES = [
  { title: "Loss", from: "train", names: { loss: "total", sort: "Sort Loss", pil: "PIL", speaker: "speaker", text: "text", words: "words" } },
  { title: "Validation (%)", from: "valid", names: { der: "DER", der_unmapped: "DER in arrival order", der_as_is: "DER in arrival order", wer: "WER", cpwer: "cpWER" }, format: (value) => percent(value, 1), tick: percentTick, dots: true },
  { title: "Training accuracy (%)", from: "train", names: { arrival_accuracy: "arrival order", speaker_accuracy: "speaker", token_accuracy: "tokens", order_right: "arrival order", speaker_right: "speaker", tokens_right: "tokens" }, format: (value) => percent(value, 0), tick: percentTick },
  { title: "Learning rate", from: "train", names: { learning_rate: "learning rate" } },
  { title: "Speed (seconds of audio per second)", from: "train", names: { audio_per_second: "speed" } },
  { title: "Gradient norm", from: "train", names: { grad_norm: "norm" } },
];

function training() {
  if (!data.training?.length) return null;
  return make("section", { id: "training" }, make("h2", {}, "Training"), data.training.map((model) => {
    const charts = CURVES.map((curve) => {
      const series = Object.keys(curve.names).filter((name) => model[curve.from][name]?.length)
        .map((name, index) => ({ name: curve.names[name], points: model[curve.from][name], colour: LINES[index] }));
      return series.length ? lineChart(curve.title, series, { phases: model.phases, xEnd: model.steps, format: curve.format, tick: curve.tick, dots: curve.dots }) : null;
    });
    const phases = model.phases.map((phase) => phase.name).join(", then ");
    return make("div", { style: "margin-bottom:1.2rem" },
      make("p", {}, make("b", {}, model.name), make("span", { class: "soft" }, ` · ${model.steps} steps: ${phases}`)), make("div", { class: "grid charts" }, charts));
  }));
}

function tuning() {
  const study = data.tuning;
  if (!study) return null;
  let lowest = Infinity;
  const best = study.history.map(({ trial, der }) => [trial, (lowest = Math.min(lowest, der))]);
  const low = lowest, ceiling = Math.max(2 * low, low + 0.01), last = study.history.at(-1)?.trial || 1;
  const { svg, x, y } = axes(last, low, Math.min(ceiling, Math.max(...study.history.map((one) => one.der))), { name: "trial", format: percentTick });
  svg.setAttribute("aria-label", "DER of each trial");
  for (const { trial, der } of study.history) if (der <= ceiling) svg.append(draw("circle", { cx: x(trial), cy: y(der), r: 2.3, fill: "var(--wave)" }));
  svg.append(draw("polyline", { points: best.filter(([, der]) => der <= ceiling).map(([trial, der]) => `${x(trial)},${y(der)}`).join(" "), fill: "none", stroke: "var(--speaker-1)", "stroke-width": 2 }));
  const importance = Object.entries(study.importance ?? {}).sort((a, b) => b[1] - a[1]);
  return make("section", { id: "tuning" }, make("h2", {}, "Tuning of the postprocessing"),
    make("p", { class: "soft" }, `DER on the development set: ${percent(study.der_before)} % without postprocessing, ${percent(study.der_after)} % with the tuned one` +
      (study.presets ? `; presets: ${Object.entries(study.presets).filter(([name]) => name !== "none").map(([name, der]) => `${name} ${percent(der)} %`).join(", ")}.` : ".")),
    make("div", { class: "grid charts" },
      panel(`DER (%) of ${study.history.length} trials`, svg, legend([["a trial", "var(--wave)"], ["lowest so far", "var(--speaker-1)"]])),
      panel("Tuned parameters", table(["parameter", "value"], Object.entries(study.values).map(([name, value]) => [name, String(value)]))),
      panel("Parameter importance", make("div", { class: "bars" },
        importance.flatMap(([name, share]) => [make("span", { class: "small" }, name),
          make("div", { class: "errors", style: "height:14px" }, make("i", { style: `width:${100 * share}%;background:var(--accent)` })),
          make("b", { class: "small" }, `${percent(share, 0)} %`)])))));
}

function dataPages() {
  if (!data.cleaning && !data.simulation?.sets.length) return null;
  return make("section", { id: "data" }, make("h2", {}, "Data"),
    data.simulation?.sets.length ? simulation(data.simulation) : null, data.cleaning && cleaning(data.cleaning));
}

function simulation({ target, sets }) {
  const charts = [["overlap", "Overlap (% of speech)", percentTick], ["silence", "Silence (% of the session)", percentTick],
    ["turns", "Turn length (s)", short]].map(([key, title, format]) => {
    const highest = sets[0][key].highest;
    const shares = sets.map((set) => set[key].counts.map((count) => count / (set[key].counts.reduce((a, b) => a + b, 0) || 1)));
    const { svg, x, y } = axes(highest, 0, Math.max(...shares.flat(), 0.01), { name: key === "turns" ? "seconds" : "%", yName: `% of ${key === "turns" ? "turns" : "sessions"}`, format: percentTick, xFormat: format });
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
  return [make("p", { class: "soft" }, `Simulated conversations: ${sets.map((set) => `${set.set} ${hours(set.hours)} h in ${plural(set.sessions, "session")}`).join(", ")}. The dashed lines are the targets of the recipe.`),
    make("div", { class: "grid charts" }, charts)];
}

function cleaning(parts) {
  const rules = [...new Set(parts.flatMap((part) => Object.keys(part.dropped)))].sort();
  const names = { diar: "diarizer", asr: "ASR" };
  const body = parts.map((part) => [part.set, names[part.use], hours(part.hours_in), hours(part.hours_out), part.pieces_out, ...rules.map((rule) => (part.dropped[rule] ? hours(part.dropped[rule]) : "–"))]);
  return panel("Data cleaning (hours)",
    table(["set", "used for", "input", "kept", "pieces", ...rules.map((rule) => `dropped: ${rule.replaceAll("_", " ")}`)], body, 2));
}

function settings() {
  const versions = Object.entries(data.about?.versions ?? {}).map((pair) => pair.join(" ")).join(", ");
  if (!data.settings?.length && !versions) return null;
  return make("section", { id: "settings" }, make("h2", {}, "Settings"), make("div", { class: "panel" },
    versions ? make("p", { class: "small soft" }, versions) : null,
    data.settings?.length ? make("details", {}, make("summary", {}, `All ${data.settings.length} settings of the recipe`),
      make("table", {}, make("tbody", {}, data.settings.map(([key, value]) => make("tr", {}, make("td", {}, make("code", {}, key)),
        make("td", { class: "wrap" }, make("code", {}, typeof value === "string" ? value || '""' : JSON.stringify(value)))))))) : null));
}

// --------------------------------------------------------------------------------------------------------------------
// One session: lanes on a canvas, player, words

const LANE = 20, GAP = 4, HEAD = 20, WAVE = 64, HEAT = 14, MARK = 13, AXIS = 22;
const SPEEDS = ["0.5", "0.75", "1", "1.5", "2"];
const TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200];
const SHOWN_SECONDS = 60; // the part of a long session that is shown first
const TILE = 4096; // frames in one picture: browsers limit the width of a canvas

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
    this.overview = make("canvas", { class: "overview", role: "img", "aria-label": "overview of the recording; click to move there", title: "click or drag to move" });
    for (const name of ["pointerdown", "pointermove"]) this.overview.addEventListener(name, (event) => (name === "pointerdown" || event.buttons) && this.jump(event));
    new ResizeObserver(() => this.paint()).observe(this.canvas);
  }

  show(row) {
    this.pause();
    this.row = row;
    this.view = row.view;
    this.time = 0;
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = null;
    [this.audioStart, this.audioSeconds] = [0, this.view?.audio_seconds ?? 0];
    this.audio.removeAttribute("src");
    if (!this.view) {
      this.place.replaceChildren(this.head(), make("p", { class: "soft" }, "To keep this page small, it has the turns of the worst, the middle and the best sessions only; this session is not among them."));
      return;
    }
    if (this.view.audio) {
      this.url = URL.createObjectURL(new Blob([bytes(this.view.audio)], { type: "audio/ogg" }));
      this.audio.src = this.url;
    }
    this.peaks = this.view.waveform ? bytes(this.view.waveform.peaks) : null;
    this.view.names ??= {};
    this.colours = this.assignColours();
    this.heat = null;
    this.from = 0;
    this.to = Math.min(this.view.duration, SHOWN_SECONDS);
    this.words = [];
    this.place.replaceChildren(this.head(), this.player(), ...(this.view.duration > SHOWN_SECONDS ? [this.overview] : []), this.canvas, this.notes(), ...this.texts());
    this.paint();
  }

  head() {
    const row = this.row, parts = [];
    if (data.kind === "recording") return ""; // the page has its name and numbers
    if (row.der != null && !row.systems) parts.push(make("b", {}, term("DER"), ` ${percent(row.der)} %`), ...ERRORS.map(([name], index) => [term(name), ` ${percent(row[PARTS[index]])} %`]));
    if (row.cpwer != null) parts.push([term("cpWER"), ` ${percent(row.cpwer, 1)} %`]);
    for (const system of row.systems ?? []) parts.push([`${system.name}: `, make("b", {}, term("DER"), ` ${percent(system.der)} %`)]);
    if (row.systems) parts.push(plural(row.ref_speakers, "speaker"));
    else if (row.ref_speakers != null) parts.push(`${row.hyp_speakers} of ${row.ref_speakers} speakers found`);
    else if (row.hyp_speakers != null) parts.push(plural(row.hyp_speakers, "speaker"));
    return make("div", { class: "head" }, make("h3", {}, row.id), parts.map((part) => make("span", { class: "small" }, part)));
  }

  player() {
    this.button = make("button", { class: "main", id: "play", onclick: () => this.toggle() }, "▶ Play");
    this.clock = make("span", { class: "time", id: "time" }, "");
    const speed = make("select", { "aria-label": "speed", onchange: (event) => this.setSpeed(+event.target.value) },
      SPEEDS.map((value) => make("option", { value, selected: +value === this.speed }, `${value} ×`)));
    const near = data.sessions.length > 1 ? [["‹", -1, "previous session"], ["›", 1, "next session"]].map(([sign, by, name]) => make("button", { onclick: () => step(by), "aria-label": name, title: name }, sign)) : [];
    return make("div", { class: "player" }, this.button, this.clock, speed, near, make("span", { class: "space" }),
      this.saveMenu(),
      make("button", { onclick: () => this.zoom(0.5), "aria-label": "zoom in", title: "zoom in" }, "+"),
      make("button", { onclick: () => this.zoom(2), "aria-label": "zoom out", title: "zoom out" }, "−"),
      make("button", { onclick: () => this.zoom(Infinity), title: "show the entire session" }, "all"));
  }

  saveMenu() {
    const { id } = this.row, systems = this.systems(), kinds = {};
    for (const system of systems) kinds[`RTTM: ${systems.length > 1 ? system.name : "segments"}`] = () => download(`${id}.rttm`, "text/plain", this.formatRttm(system));
    kinds["CSV: segments"] = () => download(`${id}.csv`, "text/csv", this.formatCsv());
    if (this.view.recognized_words.length) kinds["SRT: subtitles"] = () => download(`${id}.srt`, "text/plain", this.formatSrt());
    kinds["PNG: this picture"] = () => this.canvas.toBlob((picture) => download(`${id}.png`, "image/png", picture));
    if (data.kind === "recording") kinds["HTML: this page, with the speakers' names"] = () => download(`${id}.html`, "text/html", formatPage());
    const menu = make("select", { class: "save", "aria-label": "save", onchange: () => { kinds[menu.value](); menu.value = ""; } },
      make("option", { value: "" }, "Save as …"), Object.keys(kinds).map((kind) => make("option", { value: kind }, kind)));
    return menu;
  }

  notes() {
    const { view } = this, sentences = [];
    if (!view.audio) sentences.push("This page has no sound for this session; it plays silently.");
    else if (view.audio_seconds < view.duration - 1) sentences.push(`This page has sound for the first ${clock(view.audio_seconds).replace(".0", "")} of the recording.`);
    const chosen = make("input", { type: "file", accept: "audio/*", hidden: true, onchange: (event) => event.target.files[0] && this.playFile(event.target.files[0]) });
    const choose = (!view.audio || view.audio_seconds < view.duration - 1) && make("p", { class: "small soft", style: "margin:.3rem 0 0" },
      make("button", { class: "small", onclick: () => chosen.click() }, "Choose the audio file"), " to play all of it. The file stays on this computer.", chosen);
    return make("div", {}, view.reference.length ? errorLegend(["faint: inside the ", term("collar"), " or outside the ", term("UEM"), ", not scored"]) : null,
      sentences.map((text) => make("p", { class: "small soft", style: "margin:.3rem 0 0" }, text)), choose,
      make("p", { class: "small soft keys", style: "margin:.4rem 0 0" }, [["play", "space"], ["move by 1 s", "←", "→"], ...(data.sessions.length > 1 ? [["next, previous session", "j", "k"]] : []),
        ["zoom", "+", "−"], ["and wheel: zoom", "ctrl"], ["and wheel: scroll", "shift"]].map(([name, ...keys]) => make("span", {}, keys.flatMap((key) => [make("kbd", {}, key), " "]), name))));
  }

  // Plays a file that the reader has chosen in place of the sound in the page.
  playFile(file) {
    this.pause();
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(file);
    this.audio.src = this.url;
    this.audioStart = this.view.offset ?? 0;
    this.audioSeconds = this.view.duration;
    this.seek(this.time);
  }

  nameOf(speaker) { return this.view.names[speaker] ?? speaker; }

  // Times are those of the audio file, as in an RTTM that `sortk diarize` writes; a name in RTTM has no blanks.
  formatRttm({ hypothesis }) {
    const lines = hypothesis.flatMap((lane) => lane.turns.map(([start, end]) => [start + this.view.offset, end - start, this.nameOf(lane.speaker)])).sort((a, b) => a[0] - b[0]);
    return lines.map(([start, seconds, speaker]) =>
      `SPEAKER ${this.row.id} 1 ${start.toFixed(3)} ${seconds.toFixed(3)} <NA> <NA> ${speaker.replace(/\s+/g, "_")} <NA> <NA>\n`).join("");
  }

  formatCsv() {
    const systems = this.systems(), nameOf = (system) => (systems.length > 1 ? system.name : "hypothesis");
    const sides = [["reference", this.view.reference], ...systems.map((system) => [nameOf(system), system.hypothesis])];
    const rows = sides.flatMap(([name, lanes]) => lanes.flatMap((lane) => lane.turns.map(([start, end]) => [this.row.id, name, this.nameOf(lane.speaker), start.toFixed(3), end.toFixed(3)])));
    return csv([["session", "system", "speaker", "start", "end"], ...rows]);
  }

  // As `sortk transcribe --format srt` writes it; speaker_0 is Speaker 1 there, unless it has a name.
  formatSrt() {
    const words = this.view.recognized_words.map(([speaker, start, end, text]) => [speaker, start + this.view.offset, end + this.view.offset, text]);
    const isNumbered = words.every(([speaker]) => /^speaker_\d+$/.test(speaker));
    const label = (speaker) => this.view.names[speaker] ?? (isNumbered ? `Speaker ${+speaker.slice(8) + 1}` : speaker);
    return findCues(words, label).map(([start, end, speaker, text], index) =>
      [index + 1, `${subtitleClock(start)} --> ${subtitleClock(end)}`, ...wrapLines(`${speaker}: ${text}`), ""].join("\n")).join("\n");
  }

  // Returns the hypotheses; a page that compares systems has several.
  systems() {
    const { view } = this;
    return view.systems ?? [{ name: view.reference.length ? "Hypothesis" : "Speakers", hypothesis: view.hypothesis, mapping: view.mapping, marks: view.marks }];
  }

  // A hypothesis speaker has the colour of the reference speaker to whom it is mapped.
  assignColours() {
    const colours = { reference: {}, systems: [] };
    this.view.reference.forEach((lane, index) => (colours.reference[lane.speaker] = index % 8));
    for (const { hypothesis, mapping } of this.systems()) {
      const own = {};
      let next = this.view.reference.length;
      for (const lane of hypothesis) own[lane.speaker] = mapping[lane.speaker] != null ? colours.reference[mapping[lane.speaker]] : next++ % 8;
      colours.systems.push(own);
    }
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
    if (this.view && this.time > 0) link(this.row, this.time);
  }

  hasSound() { return this.url && !this.audio.error && this.time < this.audioSeconds - 0.01; }

  tick(now) {
    if (!this.playing) return;
    const passed = ((now - this.last) / 1000) * this.speed;
    this.last = now;
    this.time = this.hasSound() && !this.audio.paused ? this.audio.currentTime - this.audioStart : this.time + Math.max(0, passed);
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
    if (this.url && this.time < this.audioSeconds) this.audio.currentTime = this.time + this.audioStart;
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

  jump(event) {
    const box = this.overview.getBoundingClientRect(), width = this.to - this.from;
    this.look(((event.clientX - box.left) / box.width) * this.view.duration - width / 2, width);
    this.paint();
  }

  // Draws the turns of the entire recording, and a frame around the part that is shown below.
  paintOverview() {
    const canvas = this.overview;
    if (!canvas.isConnected || !canvas.clientWidth) return;
    const ratio = window.devicePixelRatio || 1, [width, height] = [canvas.clientWidth, canvas.clientHeight];
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const context = canvas.getContext("2d"), scale = width / this.view.duration;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { hypothesis } = this.systems()[0], lanes = hypothesis.length ? hypothesis : this.view.reference;
    const colours = hypothesis.length ? this.colours.systems[0] : this.colours.reference, row = height / Math.max(1, lanes.length);
    lanes.forEach((lane, index) => {
      context.fillStyle = this.tone(`speaker-${colours[lane.speaker]}`);
      for (const [start, end] of lane.turns) context.fillRect(start * scale, index * row + 1, Math.max(0.6, (end - start) * scale), row - 2);
    });
    context.fillStyle = this.tone("cursor");
    context.fillRect(this.time * scale - 0.5, 0, 1, height);
    context.strokeStyle = this.tone("text");
    context.lineWidth = 2;
    context.strokeRect(Math.min(this.from * scale + 1, width - 5), 1, Math.max(3, (this.to - this.from) * scale - 2), height - 2);
  }

  wheel(event) {
    const width = this.to - this.from;
    if (event.ctrlKey) this.zoom(event.deltaY > 0 ? 1.25 : 0.8);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.look(this.from + ((event.deltaX || event.deltaY) / 600) * width, width);
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
    this.paintOverview();
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
      for (const lane of view.reference) add(LANE, lane.speaker, (...where) => this.paintTurns(lane, this.colours.reference, view.reference_words, {}, ...where));
    }
    this.systems().forEach(({ name, hypothesis, mapping, marks }, index) => {
      heading(name);
      if (!hypothesis.length) add(LANE, "no speech", () => {});
      for (const lane of hypothesis) add(LANE, this.nameOf(lane.speaker), (...where) => this.paintTurns(lane, this.colours.systems[index], view.recognized_words, mapping, ...where));
      if (!view.reference.length) return;
      if (!view.systems) heading("Errors");
      ERRORS.forEach(([error, style], kind) => add(MARK, error, (...where) => this.paintMarks(marks, kind, style, ...where), 2));
    });
    if (view.posteriors) {
      heading("Posteriors");
      for (let speaker = 0; speaker < view.posteriors.speakers; speaker++) add(HEAT, this.nameOf(`speaker_${speaker}`), (...where) => this.paintHeat(speaker, ...where), 2);
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
    const seconds = this.view.waveform.peak_seconds, middle = top + WAVE / 2;
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

  paintTurns(lane, colours, words, mapping, context, x, top, scale) {
    context.fillStyle = this.tone("shade");
    context.fillRect(x(this.from), top, x(this.to) - x(this.from), LANE);
    context.fillStyle = this.tone(`speaker-${colours[lane.speaker]}`);
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
    const name = mapping[lane.speaker] ?? lane.speaker;
    for (const [speaker, start, end, text] of words) {
      if (speaker !== name || end < this.from || start > this.to) continue;
      const room = (end - start) * scale;
      if (context.measureText(text).width <= room + 3) context.fillText(text, x(start) + 1, top + LANE / 2 + 1);
    }
  }

  paintMarks(marks, kind, style, context, x, top, scale) {
    context.fillStyle = this.tone("shade");
    context.fillRect(x(this.from), top, x(this.to) - x(this.from), MARK);
    context.fillStyle = this.tone(style);
    for (const mark of marks) {
      context.globalAlpha = mark[5] ? 1 : 0.35; // in a collar, or not scored for another reason: not part of the DER
      if (mark[2 + kind]) context.fillRect(x(mark[0]), top, Math.max(1, (mark[1] - mark[0]) * scale), MARK);
    }
    context.globalAlpha = 1;
  }

  // The posteriors of each speaker are pictures one pixel high, made once for each theme and stretched.
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
    const tones = Array.from({ length: speakers }, (_, speaker) => {
      const own = this.colours.systems[0][`speaker_${speaker}`];
      return own == null ? colour("heat").split(",").map(Number) : colour(`speaker-${own}`).match(/[0-9a-f]{2}/gi).map((pair) => parseInt(pair, 16));
    });
    this.heat = [];
    for (let first = 0; first < frames; first += TILE) {
      const width = Math.min(TILE, frames - first), tile = make("canvas", { width, height: speakers });
      const context = tile.getContext("2d"), picture = context.createImageData(width, speakers);
      for (let frame = 0; frame < width; frame++) {
        for (let speaker = 0; speaker < speakers; speaker++) {
          const place = (first + frame) * speakers + speaker;
          const level = place % 2 ? packed[place >> 1] & 15 : packed[place >> 1] >> 4;
          picture.data.set([...tones[speaker], level * 17], 4 * (speaker * width + frame));
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
    if (view.reference_words.length || view.recognized_words.length) pages.push(["Transcript", () => this.transcript()]);
    if (view.samples?.length) pages.push(["Word errors", () => this.alignment()]);
    pages.push(["Speakers", () => this.speakers()]);
    if (pages.length === 1) return [make("h3", { style: "margin-top:1rem" }, pages[0][0]), pages[0][1]()];
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

  // Talk time of each speaker; in the page of a recording, speakers can be given names.
  speakers() {
    const compares = this.view.reference.length > 0;
    const sides = [["reference", this.view.reference, this.colours.reference], ...this.systems().map((system, index) => [this.view.systems ? system.name : "hypothesis", system.hypothesis, this.colours.systems[index]])];
    const rows = sides.flatMap(([side, lanes, colours]) => {
      const all = total(lanes.flatMap((lane) => lane.turns)) || 1;
      return lanes.map((lane) => {
        const name = data.kind === "recording" ? this.nameField(lane.speaker) : lane.speaker, seconds = total(lane.turns);
        return [make("span", { class: "speaker" }, make("i", { class: "dot", style: `background:var(--speaker-${colours[lane.speaker]})` }), name),
          ...(compares ? [side] : []), clock(seconds), `${percent(seconds / all, 1)} %`, lane.turns.length];
      });
    });
    return table(["speaker", ...(compares ? ["system"] : []), "talk time", "share", "turns"], rows, compares ? 2 : 1);
  }

  nameField(speaker) {
    return make("input", { class: "rename", value: this.nameOf(speaker), "aria-label": `name of ${speaker}`, title: "type a name; “Save as … HTML” keeps it", onchange: (event) => {
      const name = event.target.value.trim();
      if (name && name !== speaker) this.view.names[speaker] = name;
      else delete this.view.names[speaker];
      event.target.value = this.nameOf(speaker);
      this.paint();
    } });
  }

  transcript() {
    const { view } = this, sides = [["Reference", view.reference_words], ["Recognized", view.recognized_words]].filter(([, words]) => words.length);
    return make("div", { class: "columns" }, sides.map(([title, words]) => make("div", {}, sides.length > 1 || view.reference.length ? make("h3", {}, title) : null,
      make("div", { class: "turns", tabindex: 0, role: "region", "aria-label": title, onclick: (event) => event.target.dataset.start && this.seek(+event.target.dataset.start) }, groupWords(words).map((turn) => this.turn(turn))))));
  }

  // Recognized words have the names of reference speakers where these are known.
  turn(words) {
    const [speaker, start] = words[0], index = this.colours.reference[speaker] ?? this.colours.systems[0][speaker];
    return make("div", { class: "turn" }, make("i", { style: `background:var(--speaker-${index ?? 7})` }), make("div", {},
      make("div", { class: "who" }, `${this.nameOf(speaker)} · ${clock(start)}`), words.flatMap(([, begin, end, text]) => {
        const element = make("span", { class: "word", "data-start": begin }, text);
        this.words.push({ element, start: begin, end });
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
      if (now && turns && !(turns.scrollTop <= word.element.offsetTop && word.element.offsetTop < turns.scrollTop + turns.clientHeight - 24)) turns.scrollTop = word.element.offsetTop - turns.clientHeight / 2;
    }
  }

  alignment() {
    const dot = (speaker) => make("i", { class: "dot", style: `background:var(--speaker-${this.colours.reference[speaker] ?? 7})` });
    return make("div", {}, legend([["deleted", "var(--missed)"], ["inserted", "var(--false-alarm)"], ["substituted: reference, then recognized", "var(--confusion)"]]),
      this.view.samples.map((sample) => make("div", { class: "sample" },
        make("div", { class: "small soft" }, make("a", { href: "#sessions", onclick: (event) => { event.preventDefault(); this.seek(sample.start); } }, `${clock(sample.start)} – ${clock(sample.end)}`),
          ` · ${plural(sample.errors, "error")}, ${plural(sample.words, "word")}`),
        sample.speakers.map(([reference, recognized, pairs]) => make("div", { class: "aligned" },
          make("b", { class: "small soft" }, dot(reference), `${reference ?? "no speaker"} → ${recognized ?? "no speaker"} `), pairs.flatMap((pair) => [alignedWord(pair), " "]))))));
  }
}

function alignedWord([reference, recognized]) {
  if (reference === recognized) return make("span", {}, reference);
  if (recognized == null) return make("span", { class: "deleted" }, reference);
  if (reference == null) return make("span", { class: "inserted" }, recognized);
  return make("span", { class: "replaced" }, make("s", {}, reference), recognized);
}

// --------------------------------------------------------------------------------------------------------------------
// Turns and subtitles, as sortk/inference/results.py makes them. A word is [speaker, start, end, text].

const TURN_GAP_SECONDS = 0.5, LINE_LETTERS = 42, CUE_LINES = 2, CUE_SECONDS = 7, MIN_CUE_SECONDS = 1;
const byTime = (a, b) => a[0][1] - b[0][1] || a.at(-1)[2] - b.at(-1)[2];

// Returns the words of each turn: words of one speaker without a longer pause.
function groupWords(words) {
  const turns = [], open = new Map();
  for (const word of words) {
    const own = open.get(word[0]);
    if (own && word[1] - own.end <= TURN_GAP_SECONDS) own.turn.push(word);
    else {
      const turn = [word];
      turns.push(turn);
      open.set(word[0], { turn, end: own?.end ?? -Infinity });
    }
    open.get(word[0]).end = Math.max(open.get(word[0]).end, word[2]);
  }
  return turns.sort(byTime);
}

function wrapLines(text) {
  const lines = [];
  for (const word of text.split(/\s+/).filter(Boolean)) {
    if (lines.length && lines.at(-1).length + 1 + word.length <= LINE_LETTERS) lines.push(`${lines.pop()} ${word}`);
    else lines.push(word);
  }
  return lines;
}

// Returns [start, end, speaker, text] of each subtitle, which ends with a sentence, a turn, or when it is full.
function findCues(words, label) {
  const cues = [], join = (cue) => cue.map((word) => word[3]).join(" ");
  const fits = (cue, word) => !/[.?!。？！…]$/.test(cue.at(-1)[3]) && word[2] - cue[0][1] <= CUE_SECONDS && wrapLines(`${label(word[0])}: ${join([...cue, word])}`).length <= CUE_LINES;
  for (const turn of groupWords(words)) {
    let cue = null;
    for (const word of turn) {
      if (cue && fits(cue, word)) cue.push(word);
      else cues.push((cue = [word]));
    }
  }
  cues.sort(byTime);
  return cues.map((cue, place) => {
    const start = cue[0][1], next = cues.find((other, index) => index > place && other[0][1] > start)?.[0][1] ?? Infinity;
    return [start, Math.max(...cue.map((word) => word[2]), Math.min(start + MIN_CUE_SECONDS, next), start + 0.01), label(cue[0][0]), join(cue)];
  });
}

// 00:01:02,345
function subtitleClock(seconds) {
  const ms = Math.round(1000 * Math.max(0, seconds)), pad = (number, digits = 2) => String(number).padStart(digits, "0");
  return `${pad(Math.floor(ms / 3.6e6))}:${pad(Math.floor(ms / 60_000) % 60)}:${pad(Math.floor(ms / 1000) % 60)},${pad(ms % 1000, 3)}`;
}

// --------------------------------------------------------------------------------------------------------------------
// The list of sessions

const ORDERS = {
  "worst DER": (a, b) => (b.der ?? -1) - (a.der ?? -1),
  "best DER": (a, b) => (a.der ?? 9) - (b.der ?? 9),
  "worst cpWER": (a, b) => (b.cpwer ?? -1) - (a.cpwer ?? -1),
  "largest difference": (a, b) => difference(b) - difference(a),
  name: (a, b) => a.id.localeCompare(b.id),
  "with sound": (a, b) => !!b.view?.audio - !!a.view?.audio || (b.der ?? -1) - (a.der ?? -1),
};
const difference = ({ systems = [] }) => Math.max(0, ...systems.map((one) => one.der ?? 0)) - Math.min(...systems.map((one) => one.der ?? 0), 9);
let view = null, shown = [], current = null;

function sessions() {
  if (!data.sessions?.length) return null;
  const place = make("div", { class: "panel view", id: "view" });
  view = new SessionView(place);
  shown = data.sessions;
  if (data.kind === "recording") return make("section", { id: "sessions" }, make("div", { class: "browser alone" }, place));
  const rows = make("div", { class: "rows", id: "rows" }), count = make("span", { class: "small soft", id: "count" });
  const known = Object.keys(ORDERS).filter((name) => (name !== "worst cpWER" || data.sessions.some((row) => row.cpwer != null)) && (name !== "largest difference" || data.sessions.some((row) => row.systems)));
  const list = () => {
    const wanted = search.value.trim().toLowerCase();
    shown = data.sessions.filter((row) => row.id.toLowerCase().includes(wanted) && filters.every(([key, select]) => !select.value || String(row[key]) === select.value)).sort(ORDERS[order.value]);
    rows.replaceChildren(...shown.map(sessionRow));
    count.textContent = shown.length === data.sessions.length ? "" : `${shown.length} of ${data.sessions.length}`;
    markCurrent();
  };
  const search = make("input", { type: "search", placeholder: "search sessions", "aria-label": "search sessions", id: "search", oninput: list });
  const order = make("select", { "aria-label": "order", title: "order", onchange: list }, known.map((name) => make("option", { value: name }, name)));
  const filters = [["set", "all sets", (value) => value], ["ref_speakers", "all speakers", (value) => plural(+value, "speaker")]].map(([key, all, name]) => {
    const values = [...new Set(data.sessions.map((row) => row[key]).filter((value) => value != null))].sort();
    return [key, make("select", { "aria-label": `filter by ${key.replace("ref_", "number of ")}`, title: `filter by ${key.replace("ref_", "number of ")}`, "data-key": key, hidden: values.length < 2, onchange: list }, make("option", { value: "" }, all), values.map((value) => make("option", { value }, name(value))))];
  });
  list();
  const nSounds = data.sessions.filter((row) => row.view?.audio).length, all = data.sessions.length;
  const sound = nSounds === all ? "all with sound" : nSounds ? `${nSounds} of them with sound (♪): the worst, the middle and the best` : "without sound";
  return make("section", { id: "sessions" }, make("h2", {}, "Sessions"), make("p", { class: "soft" }, `${plural(all, "scored session")}, ${sound}.${data.sessions[0].systems ? ` The bars are those of ${data.sessions[0].systems[0].name}.` : ""}`),
    make("div", { class: "browser" }, make("div", { class: "panel list" },
      make("div", { class: "tools" }, search, make("button", { onclick: exportSessions, title: "save this list as a table" }, "CSV"), order, filters.map(([, select]) => select), count), rows), place));
}

function exportSessions() {
  const keys = ["id", "set", "der", "miss", "false_alarm", "confusion", "cpwer", "scored_seconds", "ref_speakers", "hyp_speakers"].filter((key) => shown.some((row) => row[key] != null));
  const systems = (data.sessions[0].systems ?? []).map((system) => system.name); // the other columns are those of the first system
  download("sessions.csv", "text/csv", csv([[...keys, ...systems.map((name) => `der of ${name}`)], ...shown.map((row) => [...keys.map((key) => row[key]), ...(row.systems ?? []).map((system) => system.der)])]));
}

function sessionRow(row) {
  row.element = make("button", { class: "row", onclick: () => choose(row, true) },
    make("span", { class: "name", title: row.id }, row.view?.audio ? "♪ " : "", row.id), make("span", { class: "rate" }, row.systems ? `${row.systems.map((one) => percent(one.der, 1)).join(" / ")} %` : row.der == null ? "–" : `${percent(row.der, 1)} %`),
    make("span", { class: "more" }, errorBar(row), make("span", { title: "speakers found / speakers in the reference" }, `${row.hyp_speakers}/${row.ref_speakers} spk`)));
  return row.element;
}

// Puts a link to a session, and to a time in it, into the address: #session=NAME&set=SET&t=SECONDS
function link(row, time = 0) {
  if (data.sessions.length < 2 && !time) return;
  const where = new URLSearchParams({ session: row.id, ...(row.set != null && { set: row.set }), ...(time && { t: time.toFixed(1) }) });
  history.replaceState(null, "", `#${where}`);
}

function followLink() {
  const where = new URLSearchParams(location.hash.slice(1)), id = where.get("session");
  const row = id != null && data.sessions.find((one) => one.id === id && (where.get("set") ?? one.set) === one.set);
  if (!row) return false;
  choose(row);
  if (where.get("t")) view.seek(+where.get("t") || 0);
  document.getElementById("sessions").scrollIntoView();
  return true;
}

function choose(row, isClicked = false) {
  current = row;
  markCurrent();
  view.show(row);
  if (!isClicked) return;
  link(row);
  if (matchMedia("(max-width: 860px)").matches) view.place.scrollIntoView();
}

function markCurrent() {
  for (const row of shown) row.element?.removeAttribute("aria-current");
  current?.element?.setAttribute("aria-current", "true");
}

function step(by) {
  const next = shown[shown.indexOf(current) + by];
  if (!next) return;
  choose(next);
  link(next);
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
  // The space bar presses the button that has the focus; on the row of a session it plays.
  if (event.key === " " && target.matches("button:not(.row), a")) return;
  event.preventDefault();
  if (event.type === "keydown") act();
}

// --------------------------------------------------------------------------------------------------------------------
// The page

// Returns the HTML of this page with the data as it is now.
function formatPage() {
  const copy = document.documentElement.cloneNode(true), keep = (key, value) => (key === "element" ? undefined : value);
  copy.removeAttribute("data-theme");
  copy.querySelector("#page").replaceChildren();
  copy.querySelector("#report").textContent = JSON.stringify(data, keep).replaceAll("<", "\\u003c");
  return `<!doctype html>\n${copy.outerHTML}\n`;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  view?.forgetColours();
}

function remembered() {
  try { return localStorage.getItem("sortk-theme"); } catch { return null; } // some browsers forbid it for local files
}

function toggleTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(theme);
  try { localStorage.setItem("sortk-theme", theme); } catch { /* the choice then lasts until the page is closed */ }
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
      make("button", { id: "theme", onclick: toggleTheme, "aria-label": "dark or light", title: "dark or light" }, "◐")),
    make("main", {}, make("header", { class: "top" }, make("h1", {}, data.title),
      data.kind === "experiment" && make("span", { class: "soft" }, [about.commit && `commit ${about.commit}`, about.date].filter(Boolean).join(", ")),
      data.command ? make("span", { class: "soft small" }, "made with ", make("code", {}, data.command)) : null,
      data.missing?.length ? make("span", { class: "soft small" }, `Stages that have not been run: ${data.missing.join(", ")}`) : null),
    cards(), parts.map(([, part]) => part)));
  addEventListener("keydown", onKey);
  addEventListener("keyup", (event) => event.key === " " && event.target.matches("button.row") && event.preventDefault());
  addEventListener("hashchange", () => view && followLink());
  if (view && !followLink()) choose(shown[0]);
}

build();
