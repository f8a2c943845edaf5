// Sends a graph's file in pieces, by the API's own routes, and shows what the service says of it.
"use strict";

const PIECE_BYTES = 8 << 20;

function sending(form) {
  const outcome = document.querySelector("#outcome");
  const [button, progress, status] = ["button", "progress", "[role=status]"].map((each) => form.querySelector(each));

  async function ask(path, method, body, headers) {
    const answered = await fetch(path, { method, body, headers: { "X-CSRF-Token": form.elements.csrf.value, ...headers }, cache: "no-store" });
    if (answered.status === 401) location.reload(); // signed out
    const text = await answered.text();
    const answer = text ? JSON.parse(text) : {};
    if (!answered.ok) throw new Error(answer.detail);
    return answer;
  }

  const post = (path, document) => ask(path, "POST", JSON.stringify(document), { "Content-Type": "application/json" });

  async function send(file) {
    const upload = await post("/v1/uploads", { size: file.size });
    for (let offset = 0; offset < file.size; offset += PIECE_BYTES) {
      const piece = file.slice(offset, offset + PIECE_BYTES);
      await ask(`/v1/uploads/${upload.id}`, "PATCH", piece, { "Content-Type": "application/octet-stream", "Upload-Offset": String(offset) });
      progress.value = (offset + piece.size) / file.size;
    }
    status.textContent = "Sent. The service reads the file…";
    try {
      return await post("/v1/graphs", { upload: upload.id });
    } catch (error) {
      await ask(`/v1/uploads/${upload.id}`, "DELETE").catch(() => {}); // it expires otherwise
      throw error;
    }
  }

  button.addEventListener("click", async () => {
    const file = form.elements.file.files[0];
    outcome.replaceChildren();
    if (!file) return tell("Choose a graph file first.");
    if (file.size > Number(form.dataset.most)) return tell(`A graph's file has at most ${form.dataset.most >> 20} MiB.`);
    [button.disabled, progress.parentElement.hidden, progress.value] = [true, false, 0];
    try {
      const graph = await send(file);
      location.hash = graph.sha256;
      location.reload(); // the list
    } catch (error) {
      tell(error instanceof TypeError || error instanceof SyntaxError ? "The service does not answer: nothing was kept. Try again." : error.message);
    } finally {
      [button.disabled, progress.parentElement.hidden, status.textContent] = [false, true, ""];
    }
  });

  button.disabled = false; // before this script nothing would send the file

  function tell(text) {
    outcome.replaceChildren(Object.assign(document.createElement("p"), { className: "alert alert-bad", textContent: text }));
    outcome.focus();
  }
}

for (const form of document.querySelectorAll("form[data-graph]")) sending(form);
