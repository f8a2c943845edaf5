// Verifies a Scrimp certificate on any machine with Node 18 or newer, without packages and without the service.
//
//   node verify.mjs CERTIFICATE --public-key KEY [FILE ...]
//
// CERTIFICATE: the document of GET /v1/jobs/{id}/certificate, or its envelope alone. KEY: the service's public key, base64
// of 32 bytes, as its owner gave it to you; never one that came with the certificate. FILEs: what the job delivered. Each
// must have the SHA-256 that the certificate states.
//
// Exit status: 0 if all holds, 1 if something does not, 2 if the input cannot be read.
import { createHash, createPublicKey, verify } from "node:crypto";
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { isDeepStrictEqual } from "node:util";

const PAYLOAD_TYPE = "application/vnd.in-toto+json";
const STATEMENT_TYPE = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE = "https://scrimp.example.org/privacy-certificate/v1";
const ED25519_SPKI = Buffer.from("302a300506032b6570032100", "hex"); // RFC 8410: what precedes the raw key in DER

function stop(status, text) {
  console.error(text);
  process.exit(status);
}

function read() {
  const words = process.argv.slice(2);
  const at = words.indexOf("--public-key");
  if (at < 0 || words.length < at + 2) stop(2, "usage: node verify.mjs CERTIFICATE --public-key KEY [FILE ...]");
  const [, key] = words.splice(at, 2);
  const [path, ...files] = words;
  const raw = Buffer.from(key, "base64");
  if (raw.length !== 32) stop(2, "the public key is not 32 bytes in base64");
  const document = JSON.parse(readFileSync(path, "utf8"));
  const envelope = document.payload === undefined ? document.envelope : document;
  if (!envelope) stop(2, "this certificate has no envelope: an earlier version of the service issued it");
  return { envelope, files, shown: document.certificate, key: createPublicKey({ key: Buffer.concat([ED25519_SPKI, raw]), format: "der", type: "spki" }) };
}

// "DSSEv1", then the length and the bytes of the type and of the payload: what is signed.
function encoded(type, payload) {
  const kind = Buffer.from(type, "utf8");
  return Buffer.concat([Buffer.from(`DSSEv1 ${kind.length} `), kind, Buffer.from(` ${payload.length} `), payload]);
}

function opened(envelope, key) {
  const payload = Buffer.from(envelope.payload, "base64");
  const signed = encoded(envelope.payloadType, payload);
  const holds = envelope.signatures.some((each) => verify(null, signed, key, Buffer.from(each.sig, "base64")));
  if (!holds) stop(1, "FAULT  this key did not sign the certificate");
  if (envelope.payloadType !== PAYLOAD_TYPE) stop(1, `FAULT  the payload is of type ${envelope.payloadType}`);
  const statement = JSON.parse(payload.toString("utf8"));
  if (statement._type !== STATEMENT_TYPE || statement.predicateType !== PREDICATE_TYPE) {
    stop(1, "FAULT  the payload is not a statement about a certificate");
  }
  return statement;
}

function tell({ subject, predicate }) {
  const { epsilon, filter, steps } = predicate;
  console.log(`signed     certificate of ${predicate.job} on ${predicate.dataset.name}, issued ${predicate.issued_at}`);
  console.log(`guarantee  ε = ${epsilon.value} at δ = ${epsilon.delta}; one ${epsilon.unit}, ${epsilon.relation}`);
  console.log(`ran        ${steps.started} of ${steps.planned} steps; ${predicate.status}; the filter is ${filter.kind}`);
  for (const each of subject) console.log(`subject    ${each.digest.sha256}  ${each.name}`);
}

function compared(path, subjects) {
  const digest = createHash("sha256").update(readFileSync(path)).digest("hex");
  const named = subjects.find((each) => each.digest.sha256 === digest);
  console.log(named ? `file       ${path} is ${named.name}` : `FAULT      ${basename(path)} is none of the subjects`);
  return Boolean(named);
}

try {
  const { envelope, files, key, shown } = read();
  const statement = opened(envelope, key);
  if (shown !== undefined && !isDeepStrictEqual(shown, statement.predicate)) {
    stop(1, "FAULT  the document shows another certificate than the one that was signed");
  }
  tell(statement);
  const found = files.map((path) => compared(path, statement.subject));
  process.exitCode = found.every(Boolean) ? 0 : 1;
} catch (error) {
  stop(2, `cannot read this as a certificate: ${error.message}`);
}
