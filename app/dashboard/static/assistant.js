// The table assistant: a row for each column of a file, filled in here from the file's first rows. Nothing leaves this page
// before its owner presses “Use these rows”; then the declaration goes into the form, not the file.
"use strict";

const HEAD_BYTES = 4 * 1024 * 1024;
const ORIGINS = { data: "from your data: check that this is public knowledge", name: "public, by its name", owner: "as you say", "": "" };
const MISSING = { number: ["refuse", "middle", "flag"], date: ["refuse", "middle", "flag"], category: ["refuse", "other"] };

function element(tag, members = {}, ...children) {
  const made = Object.assign(document.createElement(tag), members);
  made.append(...children);
  return made;
}

function choice(label, options, value, change) {
  const select = element("select", { ariaLabel: label, autocomplete: "off" }, ...options.map(([name, text]) => new Option(text, name, name === value, name === value)));
  select.addEventListener("change", () => change(select.value));
  return select;
}

function entry(label, value, change) {
  const input = element("input", { ariaLabel: label, value, autocomplete: "off", spellcheck: false });
  input.addEventListener("change", () => change(input.value));
  return input;
}

const listed = (text) => text.split(",").map((each) => each.trim()).filter(Boolean);
const endOf = (text) => (numberOf(text) === null ? text.trim() : numberOf(text));

// Draws the assistant in `place`. `use` gets the declaration's members when the owner wants them.
function assistant(place, file, sheet, dictionary, use) {
  const names = [...sheet.columns.keys()];
  const plans = JSON.parse(place.dataset.plans);
  const state = { label: "", person: "", plan: "", task: null, labelOrigin: "data", rows: new Map(), privacy: {}, said: new Set() };
  const persons = new Set(names.filter((name) => isPerson(name, sheet.columns.get(name))));
  const inputs = () => names.filter((name) => name !== state.label && name !== state.person && !persons.has(name));
  const hasMany = () => inputs().length > MOST_ROWS;
  for (const name of names) state.rows.set(name, rowOf(name, sheet.columns.get(name), dictionary));

  function protect(name) {
    state.person = person.value = name;
    state.privacy = name ? peopleOf(sheet, name) : { unit: "example", records: rounded(sheet.count) };
    state.said.clear();
  }

  function features() {
    const text = inputs().find((name) => isText(sheet.columns.get(name)));
    if (text !== undefined) return { kind: "text", column: text };
    const rows = inputs().map((name) => state.rows.get(name)).filter((row) => row.use);
    if (!hasMany()) return { kind: "table", columns: rows.map((row) => row.column) };
    const plain = rows.length === inputs().length && rows.every(({ column }) => column.kind === "number" && !column.missing);
    if (plain) return { kind: "columns", columns: inputs() };
    // Nobody sees these rows: nothing of them comes from the cells, not even that some are missing.
    return { kind: "table", columns: rows.filter((row) => row.origin === "name").map(({ column: { missing, ...column } }) => column) };
  }

  function declaration() {
    const name = file.name.split(".")[0].replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-.]+|[-.]+$/g, "") || "data";
    return {
      name: name.slice(0, 80),
      format: sheet.format,
      task: state.task,
      features: features(),
      ...(sheet.csv ? { csv: sheet.csv } : {}),
      privacy: { ...state.privacy, ...(state.plan ? { plan: state.plan } : { filter: "gdp" }) },
    };
  }

  function cells(row) {
    const change = (members) => {
      Object.assign(row.column, members);
      row.origin = "owner";
      row.doubt = "";
      draw();
    };
    const { column } = row;
    if (!row.use || !column) return [row.kinds[0] ?? "", "", "", ""];
    const kind = choice(`Kind of ${row.name}`, row.kinds.map((each) => [each, each]), column.kind, (wanted) => {
      state.rows.set(row.name, rowOf(row.name, sheet.columns.get(row.name), dictionary, wanted));
      draw();
    });
    const ends = column.range?.map((end, at) => entry(`${at ? "Highest" : "Lowest"} ${row.name}`, String(end), (text) => change({ range: column.range.with(at, endOf(text)) })));
    const values = ends ? element("span", { className: "ends" }, ends[0], " to ", ends[1], row.unit ? ` ${row.unit}` : "") : entry(`Values of ${row.name}`, column.values.join(", "), (text) => change({ values: listed(text) }));
    const missing = choice(`Missing cells of ${row.name}`, MISSING[column.kind].map((each) => [each, each]), column.missing ?? "refuse", (text) => change({ missing: text }));
    const scale = column.kind === "number" ? choice(`Scale of ${row.name}`, [["linear", "linear"], ["log", "log"]], column.scale ?? "linear", (text) => change({ scale: text })) : "";
    return [kind, values, missing, scale];
  }

  function labelCells() {
    const { task } = state;
    if (!task) return ["", "neither a number nor one of a few classes", "", ""];
    const change = (members) => {
      Object.assign(task, members);
      state.labelOrigin = "owner";
      draw();
    };
    if (task.classes) {
      const whole = (texts) => (texts.every((text) => WHOLE.test(text)) ? texts.map(Number) : texts);
      return ["classes", entry(`Classes of ${task.label}`, task.classes.join(", "), (text) => change({ classes: whole(listed(text)) })), "", ""];
    }
    const ends = task.range.map((end, at) => entry(`${at ? "Highest" : "Lowest"} ${task.label}`, String(end), (text) => change({ range: task.range.with(at, endOf(text)) })));
    return ["number", element("span", { className: "ends" }, ends[0], " to ", ends[1]), "", ""];
  }

  function drawnRow(name) {
    const row = state.rows.get(name);
    const isText_ = features().kind === "text";
    const marks = [];
    let [what, used] = [["", "", "", ""], ""];
    if (name === state.label) {
      [what, used] = [labelCells(), "predicted"];
      if (state.task) marks.push(ORIGINS[state.labelOrigin]);
    } else if (name === state.person) used = "tells people apart";
    else if (persons.has(name)) used = "left out: a person's id";
    else if (isText_) used = features().column === name ? "text" : "left out: a text is used alone";
    else {
      what = cells(row);
      const box = element("input", { type: "checkbox", checked: row.use, disabled: !row.column, ariaLabel: `Use ${name}` });
      box.addEventListener("change", () => ((row.use = box.checked), draw()));
      used = element("label", { className: "check" }, box, row.use ? " feature" : ` left out${row.why ? `: ${row.why}` : ""}`);
      if (row.use) marks.push(ORIGINS[row.origin ?? ""], row.doubt ?? "");
    }
    return line(name, what, used, marks);
  }

  // What is protected: numbers that were counted in the file.
  function privacyRow(member, title) {
    const input = entry(title, String(state.privacy[member]), (text) => {
      state.privacy[member] = endOf(text);
      state.said.add(member);
      draw();
    });
    return line(title, ["number", input, "", ""], "declared", [state.said.has(member) ? ORIGINS.owner : ORIGINS.data]);
  }

  function line(title, what, used, marks) {
    const warns = marks.some((each) => each && each !== ORIGINS.name && each !== ORIGINS.owner);
    const mark = element("span", { className: warns ? "origin-data" : "muted" }, marks.filter(Boolean).join("; "));
    const labels = ["Kind", "Range or values", "Missing", "Scale", "Use", "From"];
    const drawn = [...what, used, mark].map((cell, at) => {
      const made = element("td", {}, cell === "" ? "" : typeof cell === "string" ? element("span", { textContent: cell }) : cell);
      made.dataset.label = labels[at];
      return made;
    });
    const heading = element("th", { scope: "row" }, element("span", { textContent: title }));
    heading.dataset.label = "Column";
    return element("tr", {}, heading, ...drawn);
  }

  const label = choice("Which column is predicted?", [["", "choose…"], ...names.map((name) => [name, name])], "", (name) => {
    state.label = name;
    state.task = name ? taskOf(name, sheet.columns.get(name), dictionary) : null;
    state.labelOrigin = publicColumn(name, dictionary)?.range && !state.task?.classes ? "name" : "data";
    if (name && state.person === name) protect("");
    draw();
  });
  const person = choice("Who is protected?", [["", "each record"], ...names.map((name) => [name, `each person, by ${name}`])], "", (name) => {
    protect(name === state.label ? "" : name);
    draw();
  });
  protect([...persons][0] ?? "");
  const plan = choice("Which jobs are expected?", [["", "full batches alone, for ever"], ...Object.keys(plans).map((name) => [name, name])], "", (name) => {
    state.plan = name;
    bought.textContent = name ? plans[name] : "The filter gdp: the most full-batch jobs, at their exact ε, and never any other.";
  });
  const bought = element("p", { className: "hint" });
  plan.dispatchEvent(new Event("change"));
  const head = element("thead", {}, element("tr", {}, ...["Column", "Kind", "Range or values", "Missing", "Scale", "Use", "From"].map((text) => element("th", { scope: "col", textContent: text }))));
  const body = element("tbody");
  const button = element("button", { type: "button", className: "primary", textContent: "Use these rows" });
  button.addEventListener("click", () => use(declaration()));
  const said = element("p", { className: "hint" });
  const wrong = element("div", { id: "wrong-cells" });
  wrong.setAttribute("role", "status");

  // Where the focus was, so that a drawn-again row does not lose it.
  function draw() {
    const focus = document.activeElement?.ariaLabel;
    const shown = hasMany() ? names.filter((name) => name === state.label) : names;
    const counts = [["records", state.person ? "Number of people" : "Number of records"], ["max_records_per_user", "Most records of one person"]];
    body.replaceChildren(...shown.map(drawnRow), ...counts.filter(([member]) => member in state.privacy).map((each) => privacyRow(...each)));
    if (focus) body.querySelector(`[aria-label="${CSS.escape(focus)}"]`)?.focus();
    button.disabled = !state.task;
    wrong.replaceChildren(...(state.task ? wrongRows() : []));
    const about = state.person ? `${state.person} looks like a person's id, or you chose it: each person is protected, with at most so many records as most people of the file have.` : "Each record is protected on its own: choose a person's column if somebody can have several records.";
    said.textContent = state.label && !state.task ? `${state.label} is neither a number nor one of a few classes: predict another column.` : `${about}${hasMany() ? many() : ""}`;
  }

  // The cells for which the service would refuse the file, so that nobody sends it to learn of them.
  function wrongRows() {
    const declared = (features().columns ?? []).map((column) => (typeof column === "string" ? { name: column, kind: "number" } : column));
    const found = wrongCells(sheet.columns, declared, state.task);
    if (!found.length) return [];
    const title = `The service refuses the file while it has wrong cells${found.length === MOST_WRONG ? "; the first ten:" : ":"}`;
    const short = (text) => (text.length > 40 ? `${text.slice(0, 37)}…` : text);
    const lines = found.map(({ record, column, value }) => element("li", { textContent: `record ${record}, ${column}: ${value === "" ? "empty" : `“${short(value)}”`}` }));
    const advice = `Of the ${sheet.columns.get(state.label).length} records that were looked at here. Mend them in the file, choose another kind, say what a missing cell is, or leave the column out.`;
    return [element("p", { textContent: title, className: "alert alert-warn" }), element("ul", { className: "wrong" }, ...lines), element("p", { className: "hint", textContent: advice })];
  }

  function many() {
    const { kind, columns } = features();
    const used = kind === "columns" ? "all are numbers and are used as they are" : `only what is public by a column's name is declared, ${columns?.length} of them. Declare the others in the form`;
    return ` The file has ${names.length} columns, too many to show: ${kind === "text" ? "the text alone is used" : used}.`;
  }

  const asked = (control) => element("p", { className: "asked" }, element("span", { className: "asked-label", ariaHidden: "true", textContent: control.ariaLabel }), control);
  place.replaceChildren(
    element("div", { className: "asked-row" }, asked(label), asked(person), asked(plan)),
    bought,
    element("table", { className: "rows assistant" }, element("caption", { className: "hidden", textContent: "The columns of the file, and what is protected" }), head, body),
    said,
    wrong,
    element("p", { className: "row" }, button, element("span", { className: "muted small", textContent: "Puts this declaration into the form below, which the service checks. The file stays here." })),
  );
  draw();
}
