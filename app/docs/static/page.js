// Swagger UI over this service's own document. Nothing is asked of another host: no validator, no fonts.
"use strict";

// What Swagger UI leaves out for a screen reader and a keyboard. It draws again whenever something opens.
const NAMES = {
  "#servers": "Server",
  ".examples-select-element": "Example",
  ".body-param__text": "Request body",
  ".opblock-section-request-body select": "Media type of the request body",
  ".responses-wrapper select": "Media type of the response",
};
const REGIONS = { ".information-container": "About this API", ".schemes-server-container": "Server and key" };
const LEVELS = { ".models > h4": "2", "h3": "2", "h4": "3", "h5": "4" }; // the page's title is its only h1

function mend(docs) {
  for (const [selector, name] of Object.entries(NAMES)) {
    for (const each of docs.querySelectorAll(`${selector}:not([aria-label])`)) each.setAttribute("aria-label", name);
  }
  for (const code of docs.querySelectorAll("pre.microlight:not([tabindex])")) code.tabIndex = 0; // it scrolls
  // The button that holds the link opens the operation, and writes its address: one control, not two.
  for (const link of docs.querySelectorAll("button a[href]")) link.removeAttribute("href");
  for (const [selector, name] of Object.entries(REGIONS)) {
    for (const each of docs.querySelectorAll(`${selector}:not([role])`)) {
      each.setAttribute("role", "region");
      each.setAttribute("aria-label", name);
    }
  }
  for (const [selector, level] of Object.entries(LEVELS)) {
    for (const each of docs.querySelectorAll(`${selector}:not([aria-level])`)) each.setAttribute("aria-level", level);
  }
}

async function start() {
  const docs = document.querySelector("#docs");
  new MutationObserver(() => mend(docs)).observe(docs, { childList: true, subtree: true });
  // Requests that "Try it out" sends count as the signed-in user's, unless a key was entered under "Authorize".
  const { csrf } = await (await fetch("/docs/session.json")).json();
  SwaggerUIBundle({
    url: "/openapi.json",
    dom_id: "#docs",
    deepLinking: true,
    validatorUrl: null,
    persistAuthorization: false, // a key stays in this tab's memory
    displayRequestDuration: true,
    defaultModelsExpandDepth: 0,
    docExpansion: "list",
    syntaxHighlight: { theme: "tomorrow-night" }, // the default's numbers are too dark on its ground
    showMutatedRequest: false, // the curl line shows no session's token
    requestInterceptor: (request) => {
      const own = new URL(request.url, location.href).origin === location.origin;
      if (own && csrf && !request.headers.Authorization) request.headers["X-CSRF-Token"] = csrf;
      return request;
    },
  });
}

start();
