"use strict";

// Draws the charts, moves the numbers with the slider, and pages through the points. All text from users reaches the
// page through textContent or as a property of an element (title, src), never as markup.
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const PAGE = 50;
  const SVG = "http://www.w3.org/2000/svg";
  const ARRAYS = { int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array, float32: Float32Array };
  const column = Object.fromEntries(Object.entries(data.columns).map(([name, packed]) => [name, decode(packed)]));
  const hasTruth = column.truth !== null;
  const own = data.curves[0];
  const pointNames = data.pointNames?.map((name) => name.toLowerCase());
  const knownNames = new Set(pointNames);
  const state = { radius: data.start, key: "radius", direction: 1, page: 0 };
  let visible = new Uint32Array(0);
  let chart = null;
  let frontierChart = null;
  let bars = [];

  // --- small helpers -----------------------------------------------------------------------------------------------

  function byId(id) {
    return document.getElementById(id);
  }

  /** Numbers travel as base64 of little-endian arrays: a hundred thousand points in about a megabyte. */
  function decode(packed) {
    if (packed === null) return null;
    const text = atob(packed.data);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return new ARRAYS[packed.type](bytes.buffer);
  }

  function number(value) {
    return value.toLocaleString("en-US");
  }

  /** "100.0%" and "0.0%" only where it is really all or none. */
  function percent(count, total) {
    const share = count / total;
    if (count > 0 && count < total && share >= 0.9995) return ">99.9%";
    if (count > 0 && share < 0.0005) return "<0.1%";
    return `${(100 * share).toFixed(1)}%`;
  }

  /** Counts change at distinct radii only: those at r are of the first distinct radius at or above r. */
  function countAt(radii, counts, r) {
    let low = 0;
    let high = radii.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (radii[middle] >= r) high = middle;
      else low = middle + 1;
    }
    return low < radii.length ? counts[low] : 0;
  }

  function draw(tag, attributes, text) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  /** A cell with a name: two lines of it (on a phone three), and all of it where it is pointed at. */
  function nameCell(className, name) {
    const cell = make("td", className);
    const clipped = make("span", "clip", name);
    clipped.title = name;
    cell.append(clipped);
    return cell;
  }

  function roundTicks(limit, parts) {
    const rough = Math.max(limit / parts, 1);
    const magnitude = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * magnitude).find((s) => s >= rough && Number.isInteger(s));
    return Array.from({ length: Math.floor(limit / step) + 1 }, (_, i) => i * step);
  }

  // --- the curve ---------------------------------------------------------------------------------------------------

  function frame(container, label, description, heightShare) {
    const width = Math.max(container.clientWidth, 280);
    const height = Math.round(Math.min(Math.max(width * heightShare, 230), 400));
    const box = { left: 46, right: width - 12, top: 12, bottom: height - 46, width, height };
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    svg.append(draw("desc", {}, description));
    return { svg, box };
  }

  function drawCurves() {
    const container = byId("curve-chart");
    const { svg, box } = frame(container, data.chartTitle, data.chartDescription, 0.5);
    // Radii are whole numbers: each takes the room from x(r) to x(r + 1), and its own place is the middle.
    const x = (radius) => box.left + ((box.right - box.left) * Math.min(radius, data.limit + 1)) / (data.limit + 1);
    const y = (share) => box.bottom - (box.bottom - box.top) * share;
    drawShareAxis(svg, box, y);
    drawRadiusAxis(svg, box, x, data.limit, data.unit);
    svg.append(...baselineMark(y, box));
    svg.append(draw("path", { class: "band", d: bandPath(x, y) }));
    data.curves.forEach((curve, which) => svg.append(curveLine(curve, `line-${which % 4}`, data.limit, x, y)));
    data.curves.forEach((curve, which) => svg.append(...curveName(curve, which, x, y, box)));
    const marker = draw("path", { class: "marker" });
    svg.append(marker);
    const dots = data.curves.map((_, which) => draw("circle", { class: `dot line-${which % 4}`, r: which === 0 ? 5 : 3.5 }));
    svg.append(...dots);
    container.replaceChildren(svg);
    chart = { svg, box, x, y, marker, dots };
    moveMarker(chart, data.curves);
  }

  function drawShareAxis(svg, box, y) {
    for (let percentage = 0; percentage <= 100; percentage += 20) {
      const height = y(percentage / 100);
      svg.append(draw("path", { class: percentage ? "grid" : "axis", d: `M${box.left} ${height}H${box.right}` }));
      svg.append(draw("text", { x: box.left - 8, y: height + 4, "text-anchor": "end" }, `${percentage}%`));
    }
  }

  function drawRadiusAxis(svg, box, x, limit, unit) {
    for (const radius of roundTicks(limit, box.width < 480 ? 4 : 8)) {
      svg.append(draw("text", { x: x(radius + 0.5), y: box.bottom + 20, "text-anchor": "middle" }, number(radius)));
    }
    const title = box.width < 480 ? "radius r" : `radius r: ${unit}`;
    svg.append(draw("text", { x: (box.left + box.right) / 2, y: box.height - 6, "text-anchor": "middle" }, title));
  }

  /** Corners of a step curve: level to the end of each distinct radius, then down to the next level. */
  function corners(radii, shares, x, y) {
    const points = [];
    let start = 0;
    radii.forEach((radius, i) => {
      points.push([x(start), y(shares[i])], [x(radius + 1), y(shares[i])]);
      start = radius + 1;
    });
    return points;
  }

  function path(points) {
    return points.length ? `M${points.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}` : "";
  }

  function curveLine(curve, look, limit, x, y) {
    const points = corners(curve.radius, curve.shown.map((count) => count / data.total), x, y);
    const isEnd = curve.radius[curve.radius.length - 1] <= limit; // else the line goes on beyond the axis
    if (isEnd) points.push([points[points.length - 1][0], y(0)]);
    return draw("path", { class: `line ${look}`, d: path(points), "stroke-dasharray": curve.dash ?? "" });
  }

  /** What always saying the commonest true label scores, at every radius. */
  function baselineMark(y, box) {
    if (data.baseline === null) return [];
    const height = y(data.baseline.share);
    const text = height > box.top + 16 ? height - 5 : height + 14;
    return [
      draw("path", { class: "baseline", d: `M${box.left} ${height}H${box.right}`, "stroke-dasharray": "1 4" }),
      draw("text", { class: "baseline-name", x: box.right, y: text, "text-anchor": "end" }, data.baseline.label),
    ];
  }

  function bandPath(x, y) {
    const there = corners(own.radius, own.upper, x, y);
    const back = corners(own.radius, own.lower, x, y).reverse();
    return there.length ? `${path(there.concat(back))}Z` : "";
  }

  /** The name of a method beside its line, low on it: to the right where nothing else is there, else to the left. */
  function curveName(curve, which, x, y, box) {
    if (!curve.radius.length) return [];
    const level = [0.36, 0.24, 0.12, 0.3][which % 4] * curve.shown[0];
    const at = x(1 + lastRadius(curve, level));
    const room = 8 * curve.short.length + 16;
    const free = data.curves.every((other) => lastRadius(other, level) <= lastRadius(curve, level));
    const isRight = (free && at + room < box.right) || at - room < box.left;
    const place = isRight ? { x: at + 9, y: y(level / data.total), "text-anchor": "start" } : { x: at - 9, y: y(level / data.total) + 14, "text-anchor": "end" };
    return [draw("text", { class: `name name-${which % 4}`, ...place }, curve.short)];
  }

  /** The last radius at which a curve is at least so high. */
  function lastRadius(curve, level) {
    return curve.radius[curve.shown.findLastIndex((count) => count >= level)] ?? -1;
  }

  function moveMarker({ box, x, y, marker, dots }, curves) {
    const at = x(state.radius + 0.5);
    marker.setAttribute("d", `M${at} ${box.top}V${box.bottom}`);
    curves.forEach((curve, which) => {
      dots[which].setAttribute("cx", at);
      dots[which].setAttribute("cy", y(countAt(curve.radius, curve.shown, state.radius) / data.total));
    });
  }

  function radiusUnder(event) {
    const outline = chart.svg.getBoundingClientRect();
    const along = ((event.clientX - outline.left) * chart.box.width) / outline.width;
    const share = (along - chart.box.left) / (chart.box.right - chart.box.left);
    return Math.min(Math.max(Math.floor(share * (data.limit + 1)), 0), data.limit);
  }

  // --- the curves by how far the input may change, where there are any ---------------------------------------------

  function drawFrontier() {
    if (data.frontier === undefined) return;
    const { lines, limit, unit, title, description } = data.frontier;
    const container = byId("frontier-chart");
    const { svg, box } = frame(container, title, description, 0.5);
    const x = (radius) => box.left + ((box.right - box.left) * Math.min(radius, limit + 1)) / (limit + 1);
    const y = (share) => box.bottom - (box.bottom - box.top) * share;
    drawShareAxis(svg, box, y);
    drawRadiusAxis(svg, box, x, limit, unit);
    svg.append(...baselineMark(y, box));
    for (const line of lines) svg.append(curveLine(line, `step-${line.look}`, limit, x, y));
    svg.append(...lineNames(lines, x, y, box));
    const marker = draw("path", { class: "marker" });
    const dots = lines.map((line) => draw("circle", { class: `dot step-${line.look}`, r: 3.5 }));
    svg.append(marker, ...dots);
    container.replaceChildren(svg);
    frontierChart = { box, x, y, marker, dots };
    moveMarker(frontierChart, lines);
  }

  /** The change of the input beside each line: the larger, the lower; none where there is no room for it. */
  function lineNames(lines, x, y, box) {
    const names = [];
    let lowest = -Infinity;
    lines.forEach((line, which) => {
      const level = ((line.shown[0] ?? 0) * (lines.length - which)) / (lines.length + 1);
      const height = y(level / data.total);
      if (level === 0 || height < lowest + 15) return;
      lowest = height;
      const at = x(1 + lastRadius(line, level));
      const place = at + 50 < box.right ? { x: at + 5, "text-anchor": "start" } : { x: at - 5, "text-anchor": "end" };
      names.push(draw("text", { class: `name step-${line.look}`, y: height + 4, ...place }, line.name));
    });
    return names;
  }

  function showFrontier() {
    if (frontierChart === null) return;
    moveMarker(frontierChart, data.frontier.lines);
    for (const place of document.querySelectorAll("[data-line]")) {
      const { radius, shown } = data.frontier.lines[Number(place.dataset.line)];
      place.textContent = percent(countAt(radius, shown, state.radius), data.total);
    }
  }

  // --- the histogram -----------------------------------------------------------------------------------------------

  function drawHistogram() {
    const container = byId("radii-chart");
    const { svg, box } = frame(container, "Histogram of radii", data.histogramDescription, 0.32);
    const { start, width, right, wrong, abstained } = data.histogram;
    const tallest = Math.max(abstained, ...right.map((count, i) => count + wrong[i]), 1);
    const slots = start.length + 2; // one for points that are not certified, and a gap beside it
    const slot = (box.right - box.left) / slots;
    const y = (count) => box.bottom - (box.bottom - box.top) * (count / tallest);
    drawCountAxis(svg, box, y, tallest);
    bars = [];
    const bar = (at, from, to, className, radius) => {
      if (to === from) return;
      const height = Math.max(y(from) - y(to), 1);
      const rectangle = draw("rect", { class: className, x: at + slot * 0.08, y: y(from) - height, width: slot * 0.84, height });
      svg.append(rectangle);
      bars.push({ rectangle, radius });
    };
    bar(box.left, 0, abstained, "bin", -1);
    svg.append(draw("text", { x: box.left, y: box.bottom + 20, "text-anchor": "start" }, "none"));
    start.forEach((radius, i) => {
      const at = box.left + (i + 2) * slot;
      bar(at, 0, right[i], "bin", radius + width - 1);
      bar(at, right[i], right[i] + wrong[i], "bin-wrong", radius + width - 1);
    });
    const x = (radius) => box.left + (2 + (radius + 0.5) / width) * slot;
    const widest = start.length * width - 1;
    for (const radius of roundTicks(widest, box.width < 480 ? 3 : 8)) {
      if (x(radius) < box.left + 44) continue; // the word "none" stands there
      svg.append(draw("text", { x: x(radius), y: box.bottom + 20, "text-anchor": "middle" }, number(radius)));
    }
    svg.append(draw("text", { x: (box.left + box.right) / 2, y: box.height - 6, "text-anchor": "middle" }, "radius"));
    container.replaceChildren(svg);
    fadeBars();
  }

  function drawCountAxis(svg, box, y, tallest) {
    for (const count of roundTicks(tallest, 3)) {
      svg.append(draw("path", { class: count ? "grid" : "axis", d: `M${box.left} ${y(count)}H${box.right}` }));
      svg.append(draw("text", { x: box.left - 8, y: y(count) + 4, "text-anchor": "end" }, shortNumber(count)));
    }
  }

  function shortNumber(count) {
    return count >= 10000 ? `${count / 1000}k` : number(count);
  }

  function fadeBars() {
    for (const { rectangle, radius } of bars) rectangle.classList.toggle("below", radius < state.radius);
  }

  // --- the slider --------------------------------------------------------------------------------------------------

  function readout() {
    const certified = countAt(own.radius, own.certified, state.radius);
    const parts = ["At r = ", make("strong", "", number(state.radius)), ": "];
    const share = (count, words) => parts.push(make("strong", "", percent(count, data.total)), ` ${words}`);
    if (hasTruth) {
      const right = countAt(own.radius, own.shown, state.radius);
      share(right, `correct and certified (${data.baseline.label}), `);
      share(certified - right, "certified but wrong, ");
    } else {
      share(certified, "certified, ");
    }
    share(data.total - certified, "not certified that far.");
    return parts;
  }

  function updateClasses() {
    const reached = new Map();
    const group = hasTruth ? column.truth : column.label;
    for (let i = 0; i < data.total; i++) {
      if (column.radius[i] >= state.radius && (!hasTruth || column.label[i] === column.truth[i])) {
        reached.set(group[i], (reached.get(group[i]) || 0) + 1);
      }
    }
    for (const cell of document.querySelectorAll("[data-class]")) {
      cell.textContent = percent(reached.get(Number(cell.dataset.class)) || 0, Number(cell.dataset.points));
    }
    for (const place of document.querySelectorAll("[data-radius]")) place.textContent = number(state.radius);
  }

  let scheduled = false;
  function setRadius(radius) {
    state.radius = radius;
    byId("radius").value = radius;
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      showRadius();
    });
  }

  function showRadius() {
    byId("readout").replaceChildren(...readout());
    byId("radius-value").textContent = number(state.radius);
    byId("radius").setAttribute("aria-valuetext", `radius ${byId("readout").textContent.slice(7)}`);
    moveMarker(chart, data.curves);
    showFrontier();
    fadeBars();
    updateClasses();
  }

  // --- the table of points -----------------------------------------------------------------------------------------

  /** Which points the search and the filter leave, as a test of one index. */
  function wanted() {
    const shown = byId("show").value;
    const query = byId("query").value.trim().toLowerCase();
    const terms = knownNames.has(query) ? [query] : query.split(/\s+/).filter(Boolean); // "row 7" may be a name
    const tests = terms.map(termTest);
    const isWrong = (i) => hasTruth && column.label[i] !== column.truth[i];
    if (shown === "wrong") tests.push(isWrong);
    if (shown === "abstained") tests.push((i) => column.radius[i] < 0);
    if (shown === "certified-wrong") tests.push((i) => column.radius[i] >= 0 && isWrong(i));
    return (i) => tests.every((test) => test(i));
  }

  function termTest(term) {
    if (/^#\d+$/.test(term)) return (i) => i === Number(term.slice(1));
    const names = data.names.map((name) => name.toLowerCase());
    const exact = names.includes(term) || knownNames.has(term);
    const inClass = names.map((name) => (exact ? name === term : name.includes(term)));
    const inStatus = data.statuses.map((words) => !exact && words.includes(term));
    const inName = (i) => pointNames !== undefined && (exact ? pointNames[i] === term : pointNames[i].includes(term));
    return (i) => inClass[column.label[i]] || (hasTruth && inClass[column.truth[i]]) || inStatus[column.status[i]] || inName(i);
  }

  /** The place of each point when all are in the order of their names, in which "row 9" comes before "row 10". */
  function namePlaces() {
    const { compare } = new Intl.Collator("en", { numeric: true });
    const order = Uint32Array.from(data.pointNames.keys()).sort((a, b) => compare(data.pointNames[a], data.pointNames[b]));
    const places = new Uint32Array(order.length);
    order.forEach((point, place) => (places[point] = place));
    return places;
  }

  function compare() {
    const { radius, share } = column;
    const byCertainty = (a, b) => radius[a] - radius[b] || share[a] - share[b] || a - b;
    if (state.key === "radius") return (a, b) => state.direction * byCertainty(a, b);
    if (state.key === "index") return (a, b) => state.direction * (a - b);
    if (state.key === "name") column.name ??= namePlaces();
    const values = column[state.key];
    return (a, b) => state.direction * (values[a] - values[b]) || byCertainty(a, b);
  }

  function refresh() {
    const test = wanted();
    const left = [];
    for (let i = 0; i < data.total; i++) if (test(i)) left.push(i);
    visible = Uint32Array.from(left).sort(compare());
    state.page = 0;
    const all = data.total === 1 ? "1 point." : `All ${number(data.total)} points.`;
    byId("found").textContent = visible.length === data.total ? all : `${number(visible.length)} of ${number(data.total)} points.`;
    showOrder();
    showPage();
  }

  function showOrder() {
    for (const button of document.querySelectorAll("#points-table th button")) {
      const header = button.parentElement;
      if (button.dataset.key === state.key) header.setAttribute("aria-sort", state.direction > 0 ? "ascending" : "descending");
      else header.removeAttribute("aria-sort");
    }
    byId("least").setAttribute("aria-pressed", state.key === "radius" && state.direction > 0);
    byId("most").setAttribute("aria-pressed", state.key === "radius" && state.direction < 0);
  }

  function showPage() {
    const from = state.page * PAGE;
    const to = Math.min(from + PAGE, visible.length);
    byId("rows").replaceChildren(...Array.from(visible.subarray(from, to), row));
    byId("page").textContent = visible.length ? `${number(from + 1)} to ${number(to)} of ${number(visible.length)}` : "No point fits.";
    byId("first").disabled = byId("previous").disabled = state.page === 0;
    byId("last").disabled = byId("next").disabled = to >= visible.length;
  }

  function row(i) {
    const wrong = hasTruth && column.label[i] !== column.truth[i];
    const line = make("tr");
    const index = make("th", "number", number(i));
    index.scope = "row";
    line.append(index);
    if (data.pointNames !== null) line.append(nameCell("text name", data.pointNames[i]));
    if (data.pictures !== null) line.append(pictureCell(i));
    line.append(nameCell("text", data.names[column.label[i]]));
    if (hasTruth) line.append(nameCell(wrong ? "text wrong" : "text", data.names[column.truth[i]]));
    line.append(make("td", "number", percent(Math.round(column.share[i] * 1e6), 1e6)));
    line.append(radiusCell(column.radius[i], column.status[i] === data.searchLimit));
    for (const key of data.frontier?.columns ?? []) {
      line.append(radiusCell(column[key][i], column[key][i] === data.frontier.searchLimit));
    }
    const status = make("td", "", data.statuses[column.status[i]]);
    if (wrong) status.append(", ", make("span", "wrong", "wrong"));
    line.append(status);
    return line;
  }

  function radiusCell(radius, isEndOfSearch) {
    const cell = make("td", "number");
    if (radius < 0) {
      const dash = make("span", "", "–");
      dash.setAttribute("aria-hidden", "true");
      cell.append(dash, make("span", "hidden", "none"));
    } else {
      cell.textContent = (isEndOfSearch ? "≥ " : "") + number(radius);
    }
    return cell;
  }

  function pictureCell(i) {
    const cell = make("td");
    const encoded = data.pictures[i];
    if (encoded !== undefined) {
      const picture = make("img");
      picture.src = `data:image/png;base64,${encoded}`;
      picture.alt = `Test point ${i}`;
      cell.append(picture);
    }
    return cell;
  }

  function sortBy(key, direction) {
    state.key = key;
    state.direction = direction;
    refresh();
  }

  function turnTo(page) {
    state.page = Math.min(Math.max(page, 0), Math.max(Math.ceil(visible.length / PAGE) - 1, 0));
    showPage();
  }

  // --- light and dark ----------------------------------------------------------------------------------------------

  function isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function showTheme() {
    byId("theme").setAttribute("aria-pressed", isDark());
  }

  // --- start -------------------------------------------------------------------------------------------------------

  function listen() {
    byId("radius").addEventListener("input", (event) => setRadius(Number(event.target.value)));
    const follow = (event) => {
      if (event.buttons & 1) setRadius(radiusUnder(event));
    };
    byId("curve-chart").addEventListener("pointerdown", follow);
    byId("curve-chart").addEventListener("pointermove", follow);
    byId("query").addEventListener("input", refresh);
    byId("show").addEventListener("change", refresh);
    byId("least").addEventListener("click", () => sortBy("radius", 1));
    byId("most").addEventListener("click", () => sortBy("radius", -1));
    for (const button of document.querySelectorAll("#points-table th button")) {
      const key = button.dataset.key;
      button.addEventListener("click", () => sortBy(key, state.key === key ? -state.direction : 1));
    }
    byId("first").addEventListener("click", () => turnTo(0));
    byId("previous").addEventListener("click", () => turnTo(state.page - 1));
    byId("next").addEventListener("click", () => turnTo(state.page + 1));
    byId("last").addEventListener("click", () => turnTo(Infinity));
    byId("theme").addEventListener("click", () => {
      document.documentElement.dataset.theme = isDark() ? "light" : "dark";
      showTheme();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  }

  /** Charts are drawn again for another width, so that their text keeps its size. */
  function drawWhenResized() {
    let width = 0;
    new ResizeObserver(() => {
      if (byId("curve-chart").clientWidth === width) return;
      width = byId("curve-chart").clientWidth;
      drawCurves();
      drawFrontier();
      drawHistogram();
    }).observe(byId("curve-chart"));
  }

  document.documentElement.classList.add("script");
  listen();
  showTheme();
  drawCurves();
  drawFrontier();
  drawHistogram();
  showRadius();
  refresh();
  drawWhenResized();
})();
