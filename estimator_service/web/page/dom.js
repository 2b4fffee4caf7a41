// Elements. Text enters the page as text nodes and attribute values alone: names of pairs and workers are anyone's.

const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

// Writes only what differs, so that a selection, the focus and a scroll position outlive an update.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

function show(node, visible) {
  node.hidden = !visible;
}

// Makes `parent` hold `count` children, the missing ones from `make`.
function resize(parent, count, make) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(make());
  return [...parent.children];
}

// columns: [title, kind], kind "number" or "text". rows: each a list of texts, or of [text, "warn"].
function fillTable(table, columns, rows) {
  if (!table.tHead) {
    const titles = columns.map(([title, kind]) => element("th", { scope: "col", class: kind }, title));
    table.append(element("thead", {}, element("tr", {}, ...titles)), element("tbody"));
  }
  table.hidden = rows.length === 0;
  const made = resize(table.tBodies[0], rows.length, () => element("tr"));
  made.forEach((row, i) => {
    const cells = resize(row, columns.length, () => element("td"));
    cells.forEach((cell, j) => {
      const value = rows[i][j];
      const [text, mark] = Array.isArray(value) ? value : [value, ""];
      setText(cell, text);
      setClass(cell, `${columns[j][1]} ${mark}`.trim());
    });
  });
}

// facts: [name, value, small print, "warn" or ""].
function fillFacts(list, facts) {
  const made = resize(list, facts.length, () => element("div", {}, element("dt"), element("dd", {}, "", element("small"))));
  made.forEach((entry, i) => {
    const [name, value, small, mark] = facts[i];
    const [term, figure] = entry.children;
    setText(term, name);
    if (figure.firstChild.data !== value) figure.firstChild.data = value;
    setText(figure.lastChild, small || "");
    setClass(figure, mark || "");
  });
}
