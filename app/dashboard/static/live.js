// Keeps the parts of a page that change up to date, without reloading it.
//
// An element with `data-live="URL"` shows what URL answers. The answer's first element may carry `data-poll="ms"`: how soon
// to ask again. Without it the part is final. With `data-stream="URL"` the service says by server-sent events when to ask,
// and the pace is a tenth; without a stream it is polled. Nothing is asked while the tab is hidden. Where nothing
// changes, or the service does not answer, the pace slows down.
"use strict";

const SLOWEST = 4; // times the pace that the answer asks for
const LONGEST_WAIT_MS = 30000; // while the service does not answer
const STREAMED = 10; // times the pace, while a stream tells of changes
const GATHER_MS = 150; // several changes are one request

function follow(region) {
  if (region.dataset.followed) return;
  region.dataset.followed = "yes";
  const once = "once" in region.dataset;
  let shown = null;
  let wait = once ? 0 : pace(region);
  let timer = null;
  let asking = false;
  let stream = null;
  let gathering = null;
  let isDown = false; // the last question had no answer
  let isLate = false; // something changed while an answer was on its way

  // The browser connects again by itself, with the last id that it has seen.
  function listen() {
    if (stream || !region.dataset.stream || document.hidden) return;
    stream = new EventSource(region.dataset.stream);
    stream.addEventListener("message", () => {
      gathering ??= setTimeout(() => {
        gathering = null;
        ask();
      }, GATHER_MS);
    });
    stream.addEventListener("end", () => {
      hush();
      delete region.dataset.stream;
      ask();
    });
    stream.addEventListener("error", () => {
      if (stream?.readyState !== EventSource.CLOSED) return;
      hush();
      delete region.dataset.stream; // refused: from now on by polling
      ask();
    });
  }

  function hush() {
    stream?.close();
    stream = null;
  }

  async function ask() {
    if (asking) isLate = true;
    if (asking || document.hidden || !region.isConnected) return;
    asking = true;
    try {
      const answer = await fetch(region.dataset.live, { cache: "no-store", headers: { Accept: "text/html" } });
      if (answer.redirected || answer.status === 401) return location.reload(); // signed out: the page leads to the login
      if (!answer.ok && once) return region.replaceChildren("Not available at the moment: reload the page to try again.");
      if (!answer.ok) throw new Error(String(answer.status));
      const html = await answer.text();
      const changed = html !== shown;
      if (changed) show(region, html);
      shown = html;
      wait = once ? null : changed || pace(region) === null ? pace(region) : Math.min(wait * 1.5, pace(region) * SLOWEST);
      isDown = false;
      say("");
    } catch {
      isDown = true;
      wait = Math.min(Math.max(wait ?? 1000, 1000) * 2, LONGEST_WAIT_MS);
      say("The service does not answer. Trying again…");
    } finally {
      asking = false;
    }
    if (isLate) wait = GATHER_MS;
    isLate = false;
    if (wait === null) hush();
    plan();
  }

  function plan() {
    clearTimeout(timer);
    if (wait !== null) timer = setTimeout(ask, stream && !isDown && wait > GATHER_MS ? wait * STREAMED : wait);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return hush();
    if (wait === null) return;
    listen();
    ask();
  });
  addEventListener("pagehide", hush);
  if (wait !== null) listen();
  plan();
}

function pace(region) {
  const first = region.firstElementChild;
  return first && first.dataset.poll ? Number(first.dataset.poll) : null;
}

function say(text) {
  const place = document.getElementById("connection");
  if (place.textContent !== text) place.textContent = text;
}

function show(region, html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  matchChildren(region, page.body);
  followAll(region);
}

// Makes `old` equal to `fresh` by the smallest change, so that focus, selection and open dialogs stay where they are.
function match(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if ("once" in old.dataset) return; // filled by itself
  // What a person has folded or unfolded stays, unless there is something new to see in it.
  const folds = old.matches("details.numbers, details.more, details.fold"); // a person folds and unfolds these
  const kept = (name) => name === "open" && (folds || !fresh.open);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value && !(folds && name === "open")) old.setAttribute(name, value);
  if (old.matches(".chart, .readout")) return; // charts.js fills them
  matchChildren(old, fresh);
}

function matchChildren(old, fresh) {
  let at = old.firstChild;
  const drop = () => {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  };
  for (const next of [...fresh.childNodes]) {
    // Text makes way: an element that is moved would lose its focus, and a dialog would close.
    while (at && at.nodeType === Node.TEXT_NODE && next.nodeType !== Node.TEXT_NODE) drop();
    let found = at;
    if (next.id) found = [...old.children].find((child) => child.id === next.id) ?? null;
    else if (at && at.id) found = null;
    if (found && found.nodeName === next.nodeName) {
      if (found === at) at = at.nextSibling;
      else old.insertBefore(found, at);
      match(found, next);
    } else {
      old.insertBefore(document.adoptNode(next), at);
    }
  }
  while (at) drop();
}

function followAll(place) {
  for (const region of place.querySelectorAll("[data-live]")) follow(region);
}

followAll(document);
for (const form of document.querySelectorAll("form[data-submit-on-change]")) {
  form.addEventListener("change", () => form.requestSubmit());
  // An address names only what was chosen.
  form.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) if (!value) formData.delete(name);
  });
}
