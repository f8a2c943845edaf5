// Swagger UI over this service's own document. Nothing is asked of another host: no validator, no fonts.
"use strict";

async function start() {
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
    showMutatedRequest: false, // the curl line shows no session's token
    requestInterceptor: (request) => {
      const own = new URL(request.url, location.href).origin === location.origin;
      if (own && csrf && !request.headers.Authorization) request.headers["X-CSRF-Token"] = csrf;
      return request;
    },
  });
}

start();
