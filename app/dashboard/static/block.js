// Sends a block's file with its label and records, and shows the answer.
"use strict";

async function append(form) {
  const place = form.querySelector("#appended");
  const button = form.querySelector("button[type=submit]");
  const tell = (text) => place.replaceChildren(Object.assign(document.createElement("p"), { className: "alert alert-bad", textContent: text }));
  const { label, records, file, csrf } = form.elements;
  const body = new FormData();
  body.append("spec", new Blob([JSON.stringify({ label: label.value, records: Number(records.value.replace(/[ ,_]/g, "")) })], { type: "application/json" }));
  body.append("file", file.files[0]);
  button.disabled = true;
  place.textContent = "Sending, and reading…";
  try {
    const answered = await fetch(form.dataset.block, { method: "POST", body, headers: { "X-CSRF-Token": csrf.value } });
    if (answered.redirected || answered.status === 403) return location.reload();
    if (answered.ok) place.replaceChildren(...new DOMParser().parseFromString(await answered.text(), "text/html").body.childNodes);
    else {
      const problem = await answered.json();
      tell([problem.detail, ...(problem.errors ?? []).map((each) => `${each.pointer}: ${each.detail}`)].join(" "));
    }
  } catch {
    tell("The service does not answer as expected: reload this page to see the blocks.");
  } finally {
    button.disabled = false;
    place.focus();
  }
}

for (const form of document.querySelectorAll("form[data-block]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    append(form);
  });
}
document.documentElement.classList.add("scripted");
