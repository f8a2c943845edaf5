// How each column of a file is declared: kind, range, values, missing cells, and where the proposal comes from. The same as
// scrimp/column_rows.py and scrimp/declare.py; a test compares the two. Works on this machine alone.
"use strict";

const PERSON = /(^|_)((user|patient|person|customer|subject|client|member)(_?(id|no|nr|number|key|code|hash|pseudonym))?|(participant|employee|student|citizen|insured)_?(id|no|nr|number|key|code|hash|pseudonym)|mrn|ssn|pid|nhs_number|pseudonym)$/;
const [MOST_CLASSES, MOST_VALUES, MOST_ROWS, DECADES, TEXT_WORDS] = [50, 20, 200, 3, 4];
const DATE = /^(?:(\d{4})-\d{2}-\d{2}|(\d{1,2})\.(\d{1,2})\.(\d{4}))$/;
const NUMBER = /^\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*$/; // one way to read each digit: a long cell takes linear time
const WHOLE = /^-?\d{1,15}$/;
const [MOSTLY, MOST_WRONG] = [0.95, 10];
const [KEPT_SHARE, BOUNDS] = [0.95, [1, 2, 3, 5, 10, 20, 50, 100]];

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

// A file's columns: of its first bytes, with an estimate of the number of records.
function sheetOf(file, head, whole) {
  const text = (whole ? head : head.slice(0, head.lastIndexOf("\n") + 1)).replace(/^\ufeff/, "");
  const first = text.slice(0, text.indexOf("\n"));
  const isLines = first.trimStart().startsWith("{");
  const separator = [",", ";", "\t", "|"].reduce((best, each) => (first.split(each).length > first.split(best).length ? each : best));
  const columns = isLines ? columnsOfLines(text) : columnsOf(text, separator);
  const read = columns.values().next().value.length;
  if (columns.size < 2 || !read) throw new Error("no records with a label and a feature");
  const decimal = !isLines && separator !== "," && [...columns.values()].some((cells) => cells.slice(0, 1000).some((cell) => /^-?\d+,\d+$/.test(cell)));
  return {
    format: isLines ? "jsonl" : "csv",
    csv: isLines || separator === "," ? null : { separator, decimal: decimal ? "," : "." },
    columns,
    count: Math.max(1, Math.round(whole ? read : (read * file.size) / new Blob([text]).size)),
  };
}

function columnsOf(text, separator) {
  const [names, ...rows] = cellsOf(text, separator);
  return new Map(names.map((name, at) => [name, rows.map((row) => row[at] ?? "")]));
}

function columnsOfLines(text) {
  const rows = text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
  return new Map(Object.keys(rows[0]).map((name) => [name, rows.map((row) => row[name] ?? "")]));
}

function numberOf(cell) {
  const number = typeof cell === "string" && NUMBER.test(cell) ? Number(cell.replace(",", ".")) : cell;
  return Number.isFinite(number) ? number : null;
}

const distinct = (cells) => [...new Set(cells.filter((cell) => cell !== "").map(String))].sort();

function isText(cells) {
  const texts = cells.filter((cell) => typeof cell === "string" && cell);
  return texts.length > 0 && texts.reduce((sum, cell) => sum + cell.trim().split(/\s+/).length, 0) > TEXT_WORDS * texts.length;
}

// A column's name in small letters, with "_" between words.
const words = (name) => name.replace(/([a-z0-9])([A-Z])/g, "$1_$2").toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^_+|_+$/g, "");

// A column that looks like a person's id: by its name, or an `id` that comes again.
const isPerson = (name, cells) => PERSON.test(words(name)) || (words(name) === "id" && new Set(cells.map(String)).size < cells.length);

// What is publicly known of a column by its name.
function publicColumn(name, dictionary) {
  const plain = words(name);
  const [first, ...rest] = plain.split("_");
  const find = (wanted) => dictionary.columns.find((each) => each.names.includes(wanted));
  return find(plain) ?? (dictionary.prefixes.includes(first) ? find(rest.join("_")) : undefined);
}

// Two digits: an exact number of records would become public.
function rounded(count) {
  const unit = 10 ** Math.max(1, String(Math.round(count)).length - 2);
  return Math.max(unit, Math.round(count / unit) * unit);
}

// Round ends: the exact smallest and largest values each belong to a record.
function roundRange(low, high) {
  const value = Math.max(Math.abs(low), Math.abs(high));
  const decade = value ? Math.floor(Math.log10(value)) : 0;
  const end = value ? [1, 2, 5, 10].map((digits) => Number(`${digits}e${decade}`)).find((each) => each >= value) ?? Number(`1e${decade + 1}`) : 1;
  return [low >= 0 ? 0 : -end, high > 0 || low >= 0 ? end : 0];
}

const least = (numbers) => numbers.reduce((a, b) => Math.min(a, b));
const most = (numbers) => numbers.reduce((a, b) => Math.max(a, b));

// A row for a column: its use, its declaration, and where that comes from. `kinds`: what its cells can be declared as.
function rowOf(name, cells, dictionary, wanted = null) {
  const present = cells.filter((cell) => cell !== "");
  if (!present.length) return { name, use: false, why: "it is empty", kinds: [] };
  const lacks = present.length < cells.length;
  const known = publicColumn(name, dictionary);
  const texts = distinct(cells);
  const enough = texts.length <= MOST_VALUES ? present.length : MOSTLY * present.length;
  const numbers = present.map(numberOf).filter((each) => each !== null);
  const dates = present.map((cell) => DATE.exec(String(cell).slice(0, 10))).filter((each) => each !== null);
  const kinds = [];
  if (numbers.length >= enough) kinds.push("number");
  if (dates.length >= enough) kinds.push("date");
  if (texts.length <= MOST_VALUES) kinds.push("category");
  const values = (known?.values ?? []).find((each) => texts.every((text) => each.includes(text)));
  const kind = wanted ?? (values ? "category" : kinds[0]);
  const made = { name, use: true, kinds: values && !kinds.includes("category") ? [...kinds, "category"] : kinds };
  const flag = lacks ? { missing: "flag" } : {};
  if (kind === "number") return { ...made, ...numberRow(name, numbers, known, flag) };
  if (kind === "date") return { ...made, ...dateRow(name, dates, known, flag) };
  if (kind !== "category") return { name, use: false, why: "many values that are neither numbers nor dates", kinds };
  const column = { name, kind, values: values ?? texts, unknown: "other", ...(lacks ? { missing: "other" } : {}) };
  return { ...made, column, origin: values ? "name" : "data" };
}

function numberRow(name, numbers, known, flag) {
  const [low, high] = [least(numbers), most(numbers)];
  if (known?.range) {
    const doubt = low < known.range[0] || high > known.range[1] ? "some values lie outside: is it this unit?" : "";
    const scale = known.scale === "log" ? { scale: "log" } : {};
    return { column: { name, kind: "number", range: known.range, ...scale, ...flag }, origin: "name", unit: known.unit, doubt };
  }
  const isLog = low > 0 && high >= 10 ** DECADES * low;
  const range = isLog ? [Number(`1e${Math.floor(Math.log10(low))}`), Number(`1e${Math.ceil(Math.log10(high))}`)] : roundRange(low, high);
  return { column: { name, kind: "number", range, ...(isLog ? { scale: "log" } : {}), ...flag }, origin: "data" };
}

function dateRow(name, dates, known, flag) {
  const years = dates.map((each) => Number(each[1] ?? each[4]));
  const range = known?.days ?? [`${least(years)}-01-01`, `${most(years)}-12-31`];
  const format = dates.every((each) => each[1]) ? {} : { format: "%d.%m.%Y" };
  return { column: { name, kind: "date", range, ...format, ...flag }, origin: known?.days ? "name" : "data" };
}

// The first cells that a declaration does not allow, in the order of the records: their number, column and value.
function wrongCells(columns, declared, task) {
  const rules = [...declared, { ...task, name: task.label }];
  const found = [];
  const count = columns.get(task.label).length;
  for (let at = 0; at < count && found.length < MOST_WRONG; at++) {
    for (const rule of rules) {
      const cell = columns.get(rule.name)[at];
      if (!isAllowed(rule, cell)) found.push({ record: at + 1, column: rule.name, value: String(cell) });
    }
  }
  return found.slice(0, MOST_WRONG);
}

function isAllowed(rule, cell) {
  if (rule.label) return rule.classes ? rule.classes.map(String).includes(String(cell)) : numberOf(cell) !== null;
  if (cell === "") return rule.missing !== undefined && rule.missing !== "refuse";
  if (rule.kind === "number") return numberOf(cell) !== null;
  return rule.kind === "category" || DATE.test(String(cell).slice(0, 10));
}

// The task that predicts a column; null if it is neither a number nor one of a few classes.
function taskOf(label, cells, dictionary) {
  const texts = distinct(cells);
  const numbers = texts.map(numberOf);
  const isNumeric = !numbers.includes(null);
  if (texts.length >= 2 && texts.length <= MOST_CLASSES && (texts.length <= MOST_VALUES || !isNumeric)) {
    const classes = texts.every((text) => WHOLE.test(text)) ? texts.map(Number).sort((a, b) => a - b) : texts;
    return { kind: "classification", label, classes };
  }
  if (!isNumeric || !texts.length) return null;
  return { kind: "regression", label, range: publicColumn(label, dictionary)?.range ?? roundRange(least(numbers), most(numbers)) };
}

// The unit `user`: how many people, and the records of one that most of them do not exceed.
function peopleOf(sheet, person) {
  const cells = sheet.columns.get(person);
  const counts = new Map();
  for (const cell of cells) counts.set(cell, (counts.get(cell) ?? 0) + 1);
  const records = [...counts.values()].sort((a, b) => a - b);
  const usual = records[Math.min(records.length - 1, Math.floor(KEPT_SHARE * records.length))];
  const bound = BOUNDS.find((each) => each >= usual) ?? BOUNDS.at(-1);
  return { unit: "user", user_column: person, max_records_per_user: bound, records: rounded(Math.floor((records.length * sheet.count) / cells.length)) };
}
