// Swagger UI over this service's own document. Nothing is asked of another host: no validator, no fonts.
"use strict";

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null,
  persistAuthorization: false, // a key stays in this tab's memory
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  docExpansion: "list",
});
