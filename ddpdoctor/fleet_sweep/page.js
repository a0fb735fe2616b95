"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const MOST_ROWS = 500;
const byId = (id) => document.getElementById(id);
const element = (name, text, classes) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (classes) made.className = classes;
  return made;
};
const row = (cells) => {
  const made = element("tr");
  for (const [text, classes] of cells) made.append(element("td", text, classes));
  return made;
};

byId("headline").textContent = data.outcome;
byId("headline").className = data.verdict;
byId("about").textContent = data.about;

byId("pointed").textContent += ` From the left: ${data.columns.join(", ") || "none"}.`;

for (const section of data.sections) {
  byId("sections").append(element("h2", section.title));
  const table = element("table");
  for (const cells of section.rows) table.append(row(cells.map((text, place) => [text, place ? "" : "word"])));
  byId("sections").append(table);
}

for (const host of data.hosts) host.text = [host.name, host.group, host.why, host.slugs, host.odd].join(" ").toLowerCase();

const wanted = () => {
  const words = byId("words").value.toLowerCase().split(/\s+/).filter(Boolean);
  const verdict = byId("verdict").value;
  return data.hosts.filter((host) =>
    words.every((word) => host.text.includes(word)) &&
    (!verdict || (verdict === "odd" ? host.odd : verdict === "failing" ? host.why : host.verdict === verdict)));
};

const style = getComputedStyle(document.documentElement);
const colour = (name) => style.getPropertyValue(name).trim();
const COLOURS = { f: colour("--fail"), w: colour("--warn"), i: colour("--info"), ".": colour("--ok"), "?": colour("--crash"), "!": colour("--crash"), "-": colour("--none") };
const WORDS = { f: "fail", w: "warn", i: "info", ".": "passed", "?": "not tested: a fact is unknown", "!": "not tested: the check crashed", "-": "nothing to look at" };
let drawn = [];
let height = 1;
const WIDTH = 14;

const draw = (hosts) => {
  const canvas = byId("cells");
  // A canvas may not be higher than some 16,000 points.
  height = hosts.length > 8000 ? 1 : hosts.length > 2000 ? 2 : hosts.length > 200 ? 4 : 12;
  drawn = hosts.slice(0, Math.floor(16000 / height));
  canvas.width = Math.max(1, data.columns.length * WIDTH);
  canvas.height = Math.max(1, drawn.length * height);
  const context = canvas.getContext("2d");
  const gap = height > 3 ? 1 : 0;
  drawn.forEach((host, line) => {
    for (let column = 0; column < data.columns.length; column++) {
      context.fillStyle = COLOURS[host.states[column]] || "#0000";
      context.fillRect(column * WIDTH, line * height, WIDTH - 1, height - gap);
    }
  });
};

byId("cells").addEventListener("mousemove", (event) => {
  const host = drawn[Math.floor(event.offsetY / height)];
  const column = Math.floor(event.offsetX / WIDTH);
  if (host && data.columns[column] !== undefined)
    byId("pointed").textContent = `${host.name}: ${data.columns[column]}: ${WORDS[host.states[column]] || "not judged"}`;
});

const show = () => {
  const hosts = wanted();
  draw(hosts);
  byId("shown").textContent = `(${hosts.length} of ${data.hosts.length}${hosts.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown` : ""})`;
  byId("hosts").replaceChildren(...hosts.slice(0, MOST_ROWS).map((host) =>
    row([[host.name, "hosts"], [host.verdict, `word ${host.verdict}`], [host.group], [[host.why, host.slugs, host.odd].filter(Boolean).join(" · ")]])));
};
byId("filter").addEventListener("submit", (event) => event.preventDefault());
byId("words").addEventListener("input", show);
byId("verdict").addEventListener("input", show);
const hash = location.hash.slice(1);
try {
  byId("words").value = decodeURIComponent(hash);
} catch {
  byId("words").value = hash; // "#50%", typed by hand
}
show();
