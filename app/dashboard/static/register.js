// Registers a file: proposes its declaration here, by the table assistant; sends it with progress; shows the answer.
"use strict";

const mebibytes = (size) => (size > 1048576 ? `${(size / 1048576).toFixed(1)} MiB` : `${Math.ceil(size / 1024)} KiB`);

function registration(form) {
  const find = (id) => form.querySelector(`#${id}`);
  const json = find("json");

  const input = document.querySelector("#file");
  const place = document.querySelector("#assistant");

  async function look(file) {
    const bytes = new Uint8Array(await file.slice(0, 4).arrayBuffer());
    const magic = [...bytes].map((each) => each.toString(16).padStart(2, "0")).join("");
    const formats = { 50415231: { format: "parquet" }, "4152524f": { format: "arrow" }, "504b0304": { format: "npz", features: { kind: "tensor" } } };
    place.replaceChildren();
    find("outcome").replaceChildren();
    if (magic in formats) {
      say("A browser does not read this format, and nothing has been sent. Where the file lies, run the command; then paste what it writes into “The same as JSON”.");
      return elsewhere(file, formats[magic]);
    }
    if (magic.startsWith("1f8b")) {
      say("The file is packed, and nothing has been sent. Where it lies, run the command; then paste what it writes into “The same as JSON”.");
      return elsewhere(file, null);
    }
    if (magic === "28b52ffd") return say("The file is packed: unpack it to see its columns here, or declare them below. Nothing has been sent.");
    const sheet = await read(file);
    if (!sheet) return say("The first rows cannot be read as CSV or JSONL: fill in the form by hand.");
    const dictionary = await wellKnown();
    if (!dictionary) return say("The service does not answer with its list of well-known columns: reload this page and choose the file again.");
    say("Filled in here, from the first rows: nothing has been sent.");
    assistant(place, file, sheet, dictionary, declare);
  }

  async function read(file) {
    try {
      const head = await file.slice(0, HEAD_BYTES).text();
      return head.includes("\0") ? null : sheetOf(file, head, file.size <= HEAD_BYTES);
    } catch {
      return null;
    }
  }

  async function wellKnown() {
    try {
      const answered = await fetch(place.dataset.columns);
      return answered.ok ? await answered.json() : null;
    } catch {
      return null;
    }
  }

  // A file that is not read here: the command that reads it on its owner's side, and a button for its format alone.
  function elsewhere(file, members) {
    const quoted = `'${file.name.replaceAll("'", "'\\''")}'`;
    const command = element("code", { textContent: `scrimp datasets init ${quoted} --label COLUMN` });
    const shown = element("pre", { tabIndex: 0 }, command);
    if (!members) return place.replaceChildren(shown);
    const button = element("button", { type: "button", textContent: `Declare the format ${members.format}` });
    button.addEventListener("click", () => declare(members));
    place.replaceChildren(shown, element("p", { className: "row" }, button));
  }

  const say = (text) => (document.querySelector("#file-said").textContent = text);

  // Puts members into the declaration, in place of those of a file before.
  function declare(members) {
    const spec = JSON.parse(json.value || "{}");
    const { user_column, max_records_per_user, filter, plan, ...privacy } = spec.privacy ?? {};
    if (members.task) delete spec.csv;
    Object.assign(spec, members, members.privacy ? { privacy: { ...privacy, ...members.privacy } } : {});
    json.value = JSON.stringify(spec, null, 2);
    form.dispatchEvent(new CustomEvent("recompose", { detail: {} }));
  }

  async function send(button) {
    find("outcome").replaceChildren();
    await form.settled(); // the last key is in the JSON
    const file = input.files[0];
    if (!file) return tell("Choose a data file first.", input);
    const holdout = find("holdout-file") && find("holdout-file").files[0];
    const edges = find("edges-file") && find("edges-file").files[0];
    const most = Number(form.dataset.most);
    if (file.size + (holdout ? holdout.size : 0) + (edges ? edges.size : 0) > most)
      return tell(`This page sends at most ${mebibytes(most)}: \`scrimp datasets add\` sends larger files, in pieces, and resumes.`, input);
    const body = new FormData();
    body.append("spec", new Blob([json.value], { type: "application/json" }));
    body.append("file", file);
    if (holdout) body.append("holdout_file", holdout);
    if (edges) body.append("edges_file", edges);
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

  input.addEventListener("change", () => input.files[0] && look(input.files[0]));
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
  if (input.files[0]) look(input.files[0]);
}

for (const form of document.querySelectorAll("form[data-uploads]")) registration(form);
