// Keeps a form, its JSON and its quote together. The service reads the form, prices it and writes both: this script only
// sends what was typed, a moment after the last key, and shows the answer without moving the focus.
"use strict";

const QUIET_MS = 300; // after the last key, before a quote is asked for
const REFUSALS = {
  413: "This is too large for the service.",
  429: "Too many requests: wait a minute.",
  500: "The service failed at this request.",
  503: "The service is busy: wait a moment.",
};

const refusal = (status) => REFUSALS[status] ?? `The service refused this request (${status}).`;
const isOver = (answered) => answered.redirected || answered.status === 403; // signed out, or the form is out of date

function compose(form) {
  const json = form.querySelector("#json");
  let timer = null;
  let asked = 0;
  let flush = null; // asks now what was to be asked after the last key
  let unread = "form"; // the side that the service has not read yet, after a failure
  let isCurrent = true; // the quote belongs to what stands in the form: only then can it be submitted
  let answer = Promise.resolve();

  function ask(source, more) {
    unread = source;
    clearTimeout(timer);
    timer = flush = null;
    current(false);
    answer = exchange(source, more);
    return answer;
  }

  function current(is) {
    isCurrent = is;
    for (const button of form.querySelectorAll("button[value=submit]")) button.disabled = !is;
  }

  async function exchange(source, more = {}) {
    const mine = ++asked;
    form.querySelector("#whatif")?.replaceChildren();
    const sent = new URLSearchParams(new FormData(form));
    sent.set("source", source);
    for (const [name, value] of Object.entries(more)) sent.set(name, value);
    form.setAttribute("aria-busy", "true");
    try {
      const answered = await fetch(form.dataset.draft, { method: "POST", body: sent, cache: "no-store" });
      if (isOver(answered)) return location.reload();
      const html = await answered.text();
      if (mine !== asked) return;
      if (answered.ok) {
        update(new DOMParser().parseFromString(html, "text/html"), source);
        current(timer === null);
        unread = "form";
      }
      say(answered.ok ? "" : `${refusal(answered.status)} The quote is not of these settings: change something to try again.`);
    } catch {
      if (mine === asked) say("The service does not answer: no new quote. Change something to try again.");
    } finally {
      if (mine === asked) form.removeAttribute("aria-busy");
    }
  }

  function update(page, source) {
    const fields = form.querySelector("#fields");
    if (source === "json") {
      matchChildren(fields, page.querySelector("#fields"));
      for (const each of fields.querySelectorAll("input:not([type=file]), textarea, select")) reset(each);
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

  // What the service read, in place of what was typed here before.
  function reset(input) {
    if (input.tagName !== "SELECT") input.value = input.defaultValue;
    else for (const option of input.options) option.selected = option.defaultSelected;
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
    current(false);
    const source = event.target === json ? "json" : "form";
    flush = () => ask(source);
    timer = setTimeout(flush, event.target.tagName === "SELECT" ? 0 : QUIET_MS);
  }

  // A table of quotes belongs to the settings that it was made for.
  async function vary(button) {
    await form.settled();
    const place = form.querySelector("#whatif");
    const of = asked;
    if (!isCurrent) return (place.textContent = "No quotes: the settings above have no quote yet.");
    place.textContent = "Pricing…";
    try {
      const answered = await fetch(button.dataset.whatIf, { method: "POST", body: new URLSearchParams(new FormData(form)) });
      if (isOver(answered)) return location.reload();
      const html = await answered.text();
      if (of !== asked) return;
      if (answered.ok) place.replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
      else place.textContent = `${refusal(answered.status)} No quotes: try again.`;
    } catch {
      if (of === asked) place.textContent = "The service does not answer: no quotes. Try again.";
    }
  }

  form.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button && button.dataset.whatIf) vary(button);
    if (button && button.dataset.use) {
      const control = form.elements[button.dataset.use];
      control.value = button.dataset.value;
      control.dispatchEvent(new Event("input", { bubbles: true }));
      for (let fold = control.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
      control.focus();
    }
  });
  form.addEventListener("input", (event) => event.target.type === "file" || event.target.closest("#whatif-card") || typed(event));
  form.addEventListener("keydown", (event) => {
    const card = event.target.tagName === "INPUT" && event.target.closest("#whatif-card");
    if (!card || event.key !== "Enter") return;
    event.preventDefault();
    vary(card.querySelector("[data-what-if]"));
  });
  form.addEventListener("recompose", (event) => ask("json", event.detail));
  form.settled = () => (flush ? flush() : answer);
  form.addEventListener("submit", (event) => {
    const spends = event.submitter && event.submitter.value === "submit" && !("uploads" in form.dataset);
    if (spends && isCurrent) return;
    event.preventDefault(); // Enter, “Quote”, or a click before the quote of the last change
    if (!spends) flush ? flush() : ask(unread);
  });
  document.documentElement.classList.add("scripted");
  place();
}

for (const form of document.querySelectorAll("form[data-draft]")) compose(form);
