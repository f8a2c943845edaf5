// Registers a file: guesses a declaration from its first rows, in the browser; sends it with progress; shows the answer.
"use strict";

const HEAD_BYTES = 256 * 1024;
const LABELS = ["label", "y", "target", "class", "outcome", "diagnosis"];
const PERSON = /(^|_)(user|patient|person|customer|subject|client|member)(_?id)?$/i;
const [MOST_CLASSES, MOST_VALUES] = [50, 20]; // as scrimp.declare has them
const TEXT_WORDS = 4; // more words on average than this: a text

// The rows of a text with separators; quotes as in RFC 4180.
function cellsOf(text, separator) {
  const rows = [[]];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (quoted) {
      if (letter !== '"') cell += letter;
      else if (text[at + 1] === '"') cell += text[at++];
      else quoted = false;
    } else if (letter === '"') quoted = true;
    else if (letter === separator) cell = rows.at(-1).push(cell) && "";
    else if (letter === "\n") {
      rows.at(-1).push(cell.replace(/\r$/, ""));
      rows.push([]);
      cell = "";
    } else cell += letter;
  }
  if (cell || rows.at(-1).length) rows.at(-1).push(cell);
  else rows.pop();
  return rows;
}

function columnsOf(text, separator) {
  const [names, ...rows] = cellsOf(text, separator);
  return new Map(names.map((name, at) => [name, rows.map((row) => row[at] ?? "")]));
}

function columnsOfLines(text) {
  const rows = text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
  return new Map(Object.keys(rows[0]).map((name) => [name, rows.map((row) => row[name] ?? "")]));
}

const isNumber = (cell) => cell !== "" && Number.isFinite(Number(cell));
const isText = (cells) => cells.reduce((sum, cell) => sum + String(cell).split(/\s+/).length, 0) > TEXT_WORDS * cells.length;

function taskOf(label, cells) {
  const values = [...new Set(cells.filter((cell) => cell !== "").map(String))];
  if (values.length > MOST_CLASSES || (values.length > MOST_VALUES && values.every(isNumber))) return { kind: "regression", label };
  const whole = values.every((value) => /^-?\d{1,15}$/.test(value));
  return { kind: "classification", label, classes: whole ? values.map(Number).sort((a, b) => a - b) : values.sort() };
}

function featuresOf(inputs, notes) {
  const text = inputs.find(([, cells]) => isText(cells));
  if (text) return { kind: "text", column: text[0] };
  if (inputs.every(([, cells]) => cells.every(isNumber))) return { kind: "columns", columns: inputs.map(([name]) => name) };
  const columns = [];
  for (const [name, cells] of inputs) {
    const values = [...new Set(cells.filter((cell) => cell !== "").map(String))].sort();
    const gaps = cells.includes("");
    if (values.every(isNumber) && !gaps) columns.push({ name, kind: "number" });
    else if (values.length <= MOST_VALUES) {
      columns.push({ name, kind: "category", values, unknown: "other", ...(gaps ? { missing: "other" } : {}) });
      notes.push(`Column ${name}: list its values from public knowledge, not from the data.`);
    } else notes.push(`Column ${name} is left out: declare it as a number with a range, or as a date.`);
  }
  return { kind: "table", columns };
}

// Two digits: an exact number of records would become public.
function rounded(count) {
  const unit = 10 ** Math.max(1, String(Math.round(count)).length - 2);
  return Math.max(unit, Math.round(count / unit) * unit);
}

function guess(file, head) {
  const whole = file.size <= HEAD_BYTES;
  const text = (whole ? head : head.slice(0, head.lastIndexOf("\n") + 1)).replace(/^\ufeff/, "");
  const first = text.slice(0, text.indexOf("\n"));
  const lines = first.trimStart().startsWith("{");
  const separator = [",", ";", "\t", "|"].reduce((best, each) => (first.split(each).length > first.split(best).length ? each : best));
  const columns = lines ? columnsOfLines(text) : columnsOf(text, separator);
  const names = [...columns.keys()];
  const read = columns.get(names[0]).length;
  const label = names.find((name) => LABELS.includes(name.toLowerCase())) ?? names.at(-1);
  const person = names.find((name) => name !== label && PERSON.test(name));
  const notes = ["Guessed from the first rows: check everything. Classes and values are public: list those known without the data."];
  const inputs = [...columns].filter(([name]) => name !== label && name !== person);
  const features = featuresOf(inputs, notes);
  if (person) notes.push(`${person} looks like a person's id: if a person can have several records, choose the unit user.`);
  notes.push("The filter gdp admits full-batch jobs only, with an exact ε; rdp admits mini-batches too.");
  const records = rounded(whole ? read : (read * file.size) / new Blob([text]).size);
  const spec = {
    name: (file.name.split(".")[0].replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-.]+|[-.]+$/g, "") || "data").slice(0, 80),
    format: lines ? "jsonl" : "csv",
    task: taskOf(label, columns.get(label)),
    features,
    ...(lines || separator === "," ? {} : { csv: { separator } }),
    privacy: { sensitivity: "private", unit: "example", records, cap: { epsilon: 4 }, filter: "gdp" },
    holdout: { kind: "split", fraction: 0.2 },
  };
  return { spec, notes };
}

const mebibytes = (size) => (size > 1048576 ? `${(size / 1048576).toFixed(1)} MiB` : `${Math.ceil(size / 1024)} KiB`);

function registration(form) {
  const find = (id) => form.querySelector(`#${id}`);
  const json = find("json");

  async function look(file) {
    const bytes = new Uint8Array(await file.slice(0, 4).arrayBuffer());
    const magic = [...bytes].map((each) => each.toString(16).padStart(2, "0")).join("");
    const notes = [];
    const spec = JSON.parse(json.value || "{}");
    try {
      if (magic === "50415231") spec.format = "parquet";
      else if (magic === "4152524f") spec.format = "arrow";
      else if (magic === "504b0304") Object.assign(spec, { format: "npz", features: { kind: "tensor" } });
      else if (magic.startsWith("1f8b") || magic === "28b52ffd") notes.push("The file is packed: its columns are not looked at.");
      else {
        const head = await file.slice(0, HEAD_BYTES).text();
        if (head.includes("\0")) throw new Error("not a text");
        const found = guess(file, head);
        Object.assign(spec, found.spec);
        if (!found.spec.csv) delete spec.csv;
        notes.push(...found.notes);
      }
    } catch {
      notes.push("The first rows cannot be read as CSV or JSONL: fill in the form by hand.");
    }
    find("notes").replaceChildren(...notes.map((note) => Object.assign(document.createElement("li"), { textContent: note })));
    find("outcome").replaceChildren();
    json.value = JSON.stringify(spec, null, 2);
    form.dispatchEvent(new CustomEvent("recompose", { detail: {} }));
  }

  async function send(button) {
    find("outcome").replaceChildren();
    await form.settled(); // the last key is in the JSON
    const file = find("file").files[0];
    if (!file) return tell("Choose a data file first.", find("file"));
    const holdout = find("holdout-file") && find("holdout-file").files[0];
    const most = Number(form.dataset.most);
    if (file.size + (holdout ? holdout.size : 0) > most)
      return tell(`This page sends at most ${mebibytes(most)}: \`scrimp datasets add\` sends larger files, in pieces, and resumes.`, find("file"));
    const body = new FormData();
    body.append("spec", new Blob([json.value], { type: "application/json" }));
    body.append("file", file);
    if (holdout) body.append("holdout_file", holdout);
    const request = new XMLHttpRequest();
    request.open("POST", button.dataset.send);
    request.setRequestHeader("X-CSRF-Token", form.elements.csrf.value);
    request.upload.addEventListener("progress", (event) => sent(event.loaded / event.total, event.total));
    request.upload.addEventListener("load", () => sent(1, 0));
    request.addEventListener("load", () => answered(request));
    request.addEventListener("error", () => done("The connection broke: nothing was registered. Try again."));
    busy(true);
    sent(0, file.size);
    request.send(body);
  }

  function sent(share, total) {
    find("sent").value = share;
    find("sent-said").textContent = share < 1 ? `Sent ${Math.floor(share * 100)} % of ${mebibytes(total)}` : "Sent. The service reads the file…";
  }

  function busy(is) {
    find("sending").hidden = !is;
    for (const button of form.querySelectorAll("button[data-send]")) button.disabled = is;
  }

  function answered(request) {
    const kind = request.getResponseHeader("content-type") ?? "";
    if (request.status === 403 || request.responseURL.includes("/login")) return location.reload();
    if (request.status === 200) {
      busy(false);
      const page = new DOMParser().parseFromString(request.responseText, "text/html");
      find("outcome").replaceChildren(...page.body.childNodes);
      return find("outcome").focus();
    }
    if (!kind.includes("problem+json")) return done("The service did not answer as expected: nothing was registered.");
    const problem = JSON.parse(request.responseText);
    done(problem.detail);
    form.dispatchEvent(new CustomEvent("recompose", { detail: { refused: JSON.stringify(problem.errors ?? []) } }));
  }

  function done(text) {
    busy(false);
    tell(text, find("outcome"));
  }

  function tell(text, place) {
    const said = Object.assign(document.createElement("p"), { className: "alert alert-bad", textContent: text });
    find("outcome").replaceChildren(said);
    place.focus();
  }

  form.addEventListener("change", (event) => {
    if (event.target.id === "file" && event.target.files[0]) look(event.target.files[0]);
  });
  form.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button && button.dataset.send) send(button);
    if (button && button.dataset.take) {
      const records = find("f-privacy-records");
      records.value = button.dataset.take;
      records.dispatchEvent(new Event("input", { bubbles: true }));
      records.focus();
    }
  });
  // Chosen before this script ran, or kept by the browser over a reload.
  if (find("file").files[0]) look(find("file").files[0]);
}

for (const form of document.querySelectorAll("form[data-uploads]")) registration(form);
