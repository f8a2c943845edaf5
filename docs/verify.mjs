// Verifies a Scrimp certificate on any machine with Node 18 or newer, without packages and without the service.
//
//   node verify.mjs CERTIFICATE --public-key KEY [FILE ...]
//
// CERTIFICATE: the document of GET /v1/jobs/{id}/certificate, or its envelope alone. KEY: the service's public key, base64
// of 32 bytes, as its owner gave it to you; never one that came with the certificate. FILEs: what the job delivered. Each
// must have the SHA-256 that the certificate states. Where the certificate holds a checkpoint, the key must have signed it,
// and the job's ledger entries must be in its tree (RFC 6962). Checked is the envelope's signature; a document must show what
// the envelope holds, and name this key. The document's own `signature`, over canonical JSON, is for
// `scrimp certificates verify`: Python writes numbers as JavaScript does not.
//
// Exit status: 0 if all holds, 1 if something does not, 2 if the input cannot be read.
import { createHash, createPublicKey, verify } from "node:crypto";
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { isDeepStrictEqual } from "node:util";

const PAYLOAD_TYPE = "application/vnd.in-toto+json";
const STATEMENT_TYPE = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE = "https://scrimp.example.org/privacy-certificate/v1";
const LOG = "scrimp.example.org/ledger"; // the name of checkpoints' keys; an origin is LOG/DATASET
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
  const found = createPublicKey({ key: Buffer.concat([ED25519_SPKI, raw]), format: "der", type: "spki" });
  const shown = document.payload === undefined ? document : undefined;
  return { envelope, files, shown, named: key, key: found, raw };
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
  if (Array.isArray(predicate.ledger)) console.log(`blocks     ${predicate.ledger.map((each) => each.block).join(", ")}: their units alone`);
  for (const each of subject) console.log(`subject    ${each.digest.sha256}  ${each.name}`);
}

const sha256 = (...parts) => createHash("sha256").update(Buffer.concat(parts)).digest();
const node = (left, right) => sha256(Buffer.from([1]), left, right);

// RFC 9162, section 2.1.3.2: the root to which a leaf's path leads; undefined if the path has another length.
function rootOf(index, size, leaf, path) {
  let [here, last, found] = [index, size - 1, leaf];
  for (const each of path) {
    if (last === 0) return undefined;
    if (here % 2 === 1 || here === last) {
      found = node(each, found);
      while (here !== 0 && here % 2 === 0) [here, last] = [here / 2, Math.floor(last / 2)];
    } else found = node(found, each);
    [here, last] = [Math.floor(here / 2), Math.floor(last / 2)];
  }
  return last === 0 ? found : undefined;
}

// The faults of a certificate's checkpoint, a signed note of C2SP, and of the proofs that its entries are in it.
// A job on blocks of a data set names a ledger of each.
function faults(dataset, ledger, key, raw) {
  if (Array.isArray(ledger)) return ledger.flatMap((each) => faults({ id: each.dataset }, each, key, raw).map((fault) => `block ${each.block}: ${fault}`));
  if (ledger.checkpoint === undefined) return [];
  const [body, lines] = ledger.checkpoint.split("\n\n");
  const [origin, size, root] = body.split("\n");
  const id = sha256(Buffer.from(`${LOG}\n\x01`), raw).subarray(0, 4);
  const texts = lines.split("\n").filter((line) => line.startsWith(`\u2014 ${LOG} `)).map((line) => line.split(" ")[2]);
  const blobs = texts.map((text) => Buffer.from(text, "base64")).filter((blob, at) => blob.toString("base64") === texts[at]);
  const signed = blobs.some((blob) => blob.subarray(0, 4).equals(id) && verify(null, Buffer.from(`${body}\n`), key, blob.subarray(4)));
  const found = signed && origin === `${LOG}/${dataset.id}` ? [] : ["the checkpoint is not this ledger's, signed by this key"];
  const own = ledger.proofs.find((each) => each.entry === ledger.entry_seq);
  if (own?.hash !== ledger.head) found.push("no proof is of the entry that settled the job");
  for (const { entry, hash, path } of ledger.proofs) {
    const leaf = sha256(Buffer.from([0]), Buffer.from(hash, "hex"));
    const to = entry < 1 || entry > size ? undefined : rootOf(entry - 1, Number(size), leaf, path.map((each) => Buffer.from(each, "base64")));
    if (to?.toString("base64") !== root) found.push(`entry ${entry} is not in the checkpoint`);
  }
  console.log(`checkpoint ${size} entries, root ${root}: ${found.length ? "does NOT hold" : `has entries ${ledger.proofs.map((each) => each.entry).join(", ")}`}`);
  return found;
}

function compared(path, subjects) {
  const digest = createHash("sha256").update(readFileSync(path)).digest("hex");
  const named = subjects.find((each) => each.digest.sha256 === digest);
  console.log(named ? `file       ${path} is ${named.name}` : `FAULT      ${basename(path)} is none of the subjects`);
  return Boolean(named);
}

try {
  const { envelope, files, key, named, raw, shown } = read();
  const statement = opened(envelope, key);
  if (shown !== undefined && !isDeepStrictEqual(shown.certificate, statement.predicate)) {
    stop(1, "FAULT  the document shows another certificate than the one that was signed");
  }
  const id = createHash("sha256").update(raw).digest("hex");
  if (shown !== undefined && (shown.public_key !== named || shown.algorithm !== "Ed25519" || envelope.signatures[0].keyid !== id)) {
    stop(1, "FAULT  the document names another key or algorithm than those that signed it");
  }
  tell(statement);
  const wrong = faults(statement.predicate.dataset, statement.predicate.ledger, key, raw);
  for (const each of wrong) console.log(`FAULT      ${each}`);
  const found = files.map((path) => compared(path, statement.subject));
  process.exitCode = found.every(Boolean) && !wrong.length ? 0 : 1;
} catch (error) {
  stop(2, `cannot read this as a certificate: ${error.message}`);
}
