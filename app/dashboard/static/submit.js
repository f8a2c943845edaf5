// Keeps form, JSON and quote of a new job together. The service reads the form, prices it and writes both: this script only
// sends what was typed, a moment after the last key, and shows the answer without moving the focus.
"use strict";

const QUIET_MS = 300; // after the last key, before a quote is asked for

function compose(form) {
  const json = form.querySelector("#json");
  let timer = null;
  let asked = 0;

  async function ask(source) {
    const mine = ++asked;
    timer = null;
    const sent = new URLSearchParams(new FormData(form));
    sent.set("source", source);
    form.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(form.dataset.draft, { method: "POST", body: sent, cache: "no-store" });
      if (answer.redirected || answer.status === 403) return location.reload(); // signed out, or the form is out of date
      if (!answer.ok) throw new Error(String(answer.status));
      const html = await answer.text();
      if (mine === asked) update(new DOMParser().parseFromString(html, "text/html"), source);
      say("");
    } catch {
      say("The service does not answer: no new quote. Change something to try again.");
    } finally {
      if (mine === asked) form.removeAttribute("aria-busy");
    }
  }

  function update(page, source) {
    const fields = form.querySelector("#fields");
    if (source === "json") {
      fields.replaceChildren(...page.querySelector("#fields").childNodes);
    } else {
      const chosen = [...page.querySelectorAll("#fields select")].map((each) => [each.id, each.value]);
      matchChildren(fields, page.querySelector("#fields"));
      // Options may have come or gone: the choice is the one that the service read.
      if (timer === null) for (const [id, value] of chosen) form.querySelector(`#${id}`).value = value;
      json.value = page.querySelector("#json").value;
    }
    matchChildren(form.querySelector("#quote"), page.querySelector("#quote"));
    place();
  }

  // The slider is logarithmic: 0.01 … 10. The number beside it is what is sent.
  function place() {
    for (const slider of form.querySelectorAll("input[data-of]")) {
      const value = Number(form.querySelector(`#${slider.dataset.of}`).value);
      if (value > 0) slider.value = String(Math.log10(value));
      slider.setAttribute("aria-valuetext", value > 0 ? `ε ${value}` : "no ε");
    }
  }

  function typed(event) {
    const slider = event.target.dataset.of;
    if (slider) form.querySelector(`#${slider}`).value = String(Number((10 ** Number(event.target.value)).toPrecision(2)));
    clearTimeout(timer);
    const source = event.target === json ? "json" : "form";
    timer = setTimeout(ask, event.target.tagName === "SELECT" ? 0 : QUIET_MS, source);
  }

  form.addEventListener("input", typed);
  form.addEventListener("submit", (event) => {
    if (event.submitter && event.submitter.value === "submit") return;
    event.preventDefault(); // Enter, or “Quote”
    clearTimeout(timer);
    ask("form");
  });
  document.documentElement.classList.add("scripted");
  place();
}

for (const form of document.querySelectorAll("form[data-draft]")) compose(form);
