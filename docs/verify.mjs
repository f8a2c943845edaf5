// Verifies a Scrimp certificate on any machine with Node 18 or newer, without packages and without the service.
//
//   node verify.mjs CERTIFICATE --public-key KEY [--require-checkpoint] [--witness KEY ...]
//                   [--checkpoint FILE ...] [--proof FILE ...] [FILE ...]
//
// CERTIFICATE: the document of GET /v1/jobs/{id}/certificate, or its envelope alone. KEY: the service's public key, base64
// of 32 bytes, as its owner gave it to you; never one that came with the certificate. FILEs: what the job delivered. Each
// must have the SHA-256 that the certificate states. Where the certificate holds a checkpoint, the key must have signed it,
// and the job's ledger entries must be in its tree (RFC 6962). Checked is the envelope's signature; a document must show what
// the envelope holds, and name this key. The document's own `signature`, over canonical JSON, is for
// `scrimp certificates verify`: Python writes numbers as JavaScript does not.
//
// --require-checkpoint: each ledger that was charged must have a checkpoint. --witness KEY (NAME+hash+key): this witness
// must have cosigned it; so there must be one. --checkpoint FILE: a checkpoint from elsewhere, such as the witness, in
// place of the certificate's. --proof FILE: what leads to it, as `scrimp ledger proof` prints it.
//
// CERTIFICATE may be an egress: the folder that `scrimp egress` writes. Then the manifest's signature, every file, and the
// certificate, proofs and statement in it are checked. `scrimp verify-egress` also recomputes the statement's chain.
//
// CERTIFICATE may be the statement on a data set, as `scrimp ledger statement --to` writes it. Then each ledger's checkpoint
// and the tree over its entries are checked, and since version 3 the terms: governance and grants, which are printed.
//
// Exit status: 0 if all holds and the given key signed it; 1 if something does not hold; 2 if the input cannot be read, or
// if no key was given: the document is then intact, but anybody can sign one.
import { createHash, createPublicKey, verify } from "node:crypto";
import { lstatSync, readdirSync, readFileSync, statSync } from "node:fs";
import { basename, join, sep } from "node:path";
import { isDeepStrictEqual } from "node:util";

const PAYLOAD_TYPE = "application/vnd.in-toto+json";
const STATEMENT_TYPE = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE = "https://scrimp.example.org/privacy-certificate/v1";
const EGRESS_TYPE = "https://scrimp.example.org/egress/v1";
const TERMS_TYPE = "https://scrimp.example.org/dataset-terms/v1";
const LOG = "scrimp.example.org/ledger"; // the name of checkpoints' keys; an origin is LOG/DATASET
const ED25519_SPKI = Buffer.from("302a300506032b6570032100", "hex"); // RFC 8410: what precedes the raw key in DER

function stop(status, text) {
  console.error(text);
  process.exit(status);
}

const MANIFEST = "manifest.json";
const USAGE = `usage: node verify.mjs CERTIFICATE --public-key KEY [--require-checkpoint] [--witness KEY ...]
       [--checkpoint FILE ...] [--proof FILE ...] [FILE ...]`;

function options() {
  const found = { "--public-key": [], "--witness": [], "--checkpoint": [], "--proof": [], required: false, files: [] };
  for (let words = process.argv.slice(2); words.length; words = words.slice(1)) {
    if (words[0] === "--require-checkpoint") found.required = true;
    else if (words[0] in found && words[0].startsWith("--")) {
      if (words.length < 2) stop(2, USAGE);
      found[words[0]].push(words[1]);
      words = words.slice(1);
    } else if (words[0].startsWith("--")) stop(2, USAGE);
    else found.files.push(words[0]);
  }
  if (!found.files.length || found["--public-key"].length > 1) stop(2, USAGE);
  return found;
}

function read() {
  const { required, files: [path, ...files], ...found } = options();
  const document = JSON.parse(readFileSync(path, "utf8"));
  const shown = document.payload === undefined ? document : undefined;
  const envelope = shown === undefined ? document : document.envelope;
  if (!envelope) stop(2, "this certificate has no envelope: an earlier version of the service issued it");
  const [trusted] = found["--public-key"];
  if (trusted === undefined && shown === undefined) stop(2, "an envelope holds no public key: give --public-key, from the service's owner");
  const named = trusted ?? document.public_key;
  const raw = Buffer.from(named, "base64");
  if (raw.length !== 32) stop(2, "the public key is not 32 bytes in base64");
  const wanted = {
    checkpoint: required || found["--witness"].length > 0,
    witnesses: found["--witness"].map(witnessOf),
    notes: found["--checkpoint"].map((each) => noteOf(readFileSync(each, "utf8"))),
    proofs: found["--proof"].map((each) => JSON.parse(readFileSync(each, "utf8"))),
  };
  return { envelope, files, shown, named, key: keyOf(raw), raw, trusted, wanted };
}

const keyOf = (raw) => createPublicKey({ key: Buffer.concat([ED25519_SPKI, raw]), format: "der", type: "spki" });

// "DSSEv1", then the length and the bytes of the type and of the payload: what is signed.
function encoded(type, payload) {
  const kind = Buffer.from(type, "utf8");
  return Buffer.concat([Buffer.from(`DSSEv1 ${kind.length} `), kind, Buffer.from(` ${payload.length} `), payload]);
}

function opened(envelope, key, predicateType = PREDICATE_TYPE) {
  const payload = Buffer.from(envelope.payload, "base64");
  const signed = encoded(envelope.payloadType, payload);
  const holds = envelope.signatures.some((each) => verify(null, signed, key, Buffer.from(each.sig, "base64")));
  const [what, about] = { [EGRESS_TYPE]: ["manifest", "an egress"], [TERMS_TYPE]: ["terms", "a data set's terms"] }[predicateType] ?? ["certificate", "a certificate"];
  if (!holds) stop(1, `FAULT  this key did not sign the ${what}`);
  if (envelope.payloadType !== PAYLOAD_TYPE) stop(1, `FAULT  the payload is of type ${envelope.payloadType}`);
  const statement = JSON.parse(payload.toString("utf8"));
  if (statement._type !== STATEMENT_TYPE || statement.predicateType !== predicateType) {
    stop(1, `FAULT  the payload is not a statement about ${about}`);
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

// RFC 9162, section 2.1.4.2: says if the tree of this size begins with the leaves of the old one.
function follows(old, oldRoot, size, root, path) {
  if (old === size) return path.length === 0 && oldRoot.equals(root);
  if (!(old > 0 && old < size)) return false;
  let [here, last] = [old - 1, size - 1];
  while (here % 2 === 1) [here, last] = [Math.floor(here / 2), Math.floor(last / 2)];
  const parts = here === 0 ? [oldRoot, ...path] : path; // an old tree that is complete is a node of the new one
  if (parts.length === 0) return false;
  let [before, after] = [parts[0], parts[0]];
  for (const each of parts.slice(1)) {
    if (last === 0) return false;
    if (here % 2 === 1 || here === last) {
      [before, after] = [node(each, before), node(each, after)];
      while (here !== 0 && here % 2 === 0) [here, last] = [here / 2, Math.floor(last / 2)];
    } else after = node(after, each);
    [here, last] = [Math.floor(here / 2), Math.floor(last / 2)];
  }
  return last === 0 && before.equals(oldRoot) && after.equals(root);
}

// base64 that has one spelling alone.
function exact(text) {
  const found = Buffer.from(text, "base64");
  if (found.toString("base64") !== text) throw new Error(`this is not base64: ${text}`);
  return found;
}

// A checkpoint of C2SP: origin, size and root, an empty line, and the lines of its signers.
function noteOf(text) {
  const at = text.indexOf("\n\n");
  const [origin, size, root, ...more] = text.slice(0, at).split("\n");
  if (at < 0 || !root || more.length || String(Number(size)) !== size || !text.endsWith("\n")) throw new Error("this is not a signed checkpoint");
  const lines = text.slice(at + 2).split("\n").filter((line) => line.startsWith("\u2014 ")).map((line) => line.split(" "));
  const signatures = lines.map(([, name, blob]) => ({ name, blob: Buffer.from(blob, "base64"), text: blob }));
  const whole = signatures.filter(({ blob, text: line }) => blob.toString("base64") === line);
  return { body: text.slice(0, at + 1), origin, size: Number(size), root: exact(root), signatures: whole };
}

const LOG_KEY = 1; // the kinds of keys: a log's, and a witness's, whose signature covers its time
const WITNESS_KEY = 4;
const idOf = (name, kind, raw) => sha256(Buffer.from(`${name}\n`), Buffer.from([kind]), raw).subarray(0, 4);

function witnessOf(text) {
  const [name, hash, ...rest] = text.trim().split("+");
  const bytes = Buffer.from(rest.join("+"), "base64");
  const raw = bytes.subarray(1);
  if (bytes[0] === LOG_KEY) stop(2, `this is the key of a log, not of a witness: ${text}`);
  if (raw.length !== 32 || bytes[0] !== WITNESS_KEY || idOf(name, WITNESS_KEY, raw).toString("hex") !== hash) {
    stop(2, `this is not a witness's key (NAME+hash+key): ${text}`);
  }
  return { name, kind: WITNESS_KEY, raw };
}

// Says if a key signed a checkpoint.
function signs({ name, kind, raw }, note) {
  const id = idOf(name, kind, raw);
  return note.signatures.some(({ name: signer, blob }) => {
    if (signer !== name || !blob.subarray(0, 4).equals(id)) return false;
    if (kind === LOG_KEY) return verify(null, Buffer.from(note.body), keyOf(raw), blob.subarray(4));
    if (blob.length < 12) return false;
    const text = `cosignature/v1\ntime ${blob.readBigUInt64BE(4)}\n${note.body}`;
    return verify(null, Buffer.from(text), keyOf(raw), blob.subarray(12));
  });
}

const leafOf = (hash) => sha256(Buffer.from([0]), Buffer.from(hash, "hex"));
const includes = (entry, hash, path, note) =>
  entry >= 1 && entry <= note.size && Boolean(rootOf(entry - 1, note.size, leafOf(hash), path.map(exact))?.equals(note.root));

// Says if a proof leads to a checkpoint from elsewhere: from the certificate's own, or from the entry that settled the job.
function leads(proof, ledger, own, kept) {
  if (proof.size !== kept.size) return false;
  if (typeof proof.since === "number") {
    return own !== undefined && proof.since === own.size && follows(own.size, own.root, kept.size, kept.root, proof.path.map(exact));
  }
  return proof.entry === ledger.entry_seq && proof.hash === ledger.head && includes(proof.entry, proof.hash, proof.path, kept);
}

// A certificate's own checkpoint, if it has one, and what is wrong with it and with the proofs that its entries are in it.
function ownFaults(origin, ledger, service) {
  if (ledger.checkpoint == null) return [undefined, []];
  const [own, found] = [noteOf(ledger.checkpoint), []];
  if (own.origin !== origin || !signs(service, own)) found.push("the checkpoint is not this ledger's, signed by this key");
  const settled = ledger.proofs.find((each) => each.entry === ledger.entry_seq);
  if (settled?.hash !== ledger.head) found.push("no proof is of the entry that settled the job");
  for (const { entry, hash, path } of ledger.proofs) {
    if (!includes(entry, hash, path, own)) found.push(`entry ${entry} is not in the checkpoint`);
  }
  const said = found.length ? "does NOT hold" : `has entries ${ledger.proofs.map((each) => each.entry).join(", ")}`;
  console.log(`checkpoint ${own.size} entries, root ${own.root.toString("base64")}: ${said}`);
  return [own, found];
}

// The faults of a certificate's checkpoint and of the proofs that its entries are in it; and what lacks of what the reader
// wants. A job on blocks of a data set names a ledger of each.
function faults(dataset, ledger, raw, wanted) {
  if (Array.isArray(ledger)) {
    return ledger.flatMap((each) => faults({ id: each.dataset }, each, raw, wanted).map((fault) => `block ${each.block}: ${fault}`));
  }
  const [origin, service] = [`${LOG}/${dataset.id}`, { name: LOG, kind: LOG_KEY, raw }];
  let own;
  let found;
  try {
    [own, found] = ownFaults(origin, ledger, service);
  } catch (error) {
    return [`the checkpoint or its proofs cannot be read: ${error.message}`];
  }
  let note = own;
  for (const kept of wanted.notes.filter((each) => each.origin === origin)) {
    if (!signs(service, kept)) found.push("this key did not sign the checkpoint that was given");
    const same = own !== undefined && own.size === kept.size && own.root.equals(kept.root);
    if (!same && !wanted.proofs.some((each) => leads(each, ledger, own, kept))) {
      found.push(`no proof leads to the checkpoint of ${kept.size} entries that was given`);
    }
    note = kept;
  }
  if (note === undefined) return wanted.checkpoint ? ["it has no checkpoint"] : [];
  for (const witness of wanted.witnesses) {
    if (signs(witness, note)) console.log(`witness    ${witness.name} cosigned ${note.size} entries`);
    else found.push(`${witness.name} did not cosign the checkpoint of ${note.size} entries`);
  }
  return found;
}

function foreign({ dataset, ledger }, notes) {
  const origins = (Array.isArray(ledger) ? ledger.map((each) => each.dataset) : [dataset.id]).map((id) => `${LOG}/${id}`);
  const others = notes.filter((each) => !origins.includes(each.origin));
  return others.map((each) => `a checkpoint of ${each.origin} was given, but the certificate names no such ledger`);
}

function compared(path, subjects) {
  const digest = createHash("sha256").update(readFileSync(path)).digest("hex");
  const named = subjects.find((each) => each.digest.sha256 === digest);
  console.log(named ? `file       ${path} is ${named.name}` : `FAULT      ${basename(path)} is none of the subjects`);
  return Boolean(named);
}

// The names of all files below a folder, with slashes.
const below = (folder) =>
  readdirSync(folder, { recursive: true }).filter((name) => !lstatSync(join(folder, name)).isDirectory()).map((name) => name.split(sep).join("/"));

// What is wrong with a folder's files: missing, not signed, or not what was signed.
function fileFaults(folder, subjects, sizes) {
  const signed = new Map(subjects.map(({ name, digest }) => [name, digest.sha256]));
  const found = below(folder);
  const wrong = [...signed.keys()].filter((name) => !found.includes(name)).map((name) => `${name} is missing`);
  for (const name of found.filter((each) => each !== MANIFEST)) {
    const path = join(folder, name);
    if (lstatSync(path).isSymbolicLink()) wrong.push(`${name} is a link`);
    else if (!signed.has(name)) wrong.push(`${name} is not in the manifest`);
    else if (lstatSync(path).size !== sizes[name] || sha256(readFileSync(path)).toString("hex") !== signed.get(name)) wrong.push(`${name} is not the file that was signed`);
  }
  return wrong;
}

// RFC 6962, section 2.1: the root over these leaves.
function rootOver(leaves) {
  if (leaves.length < 2) return leaves[0] ?? sha256();
  let split = 1;
  while (split * 2 < leaves.length) split *= 2;
  return node(rootOver(leaves.slice(0, split)), rootOver(leaves.slice(split)));
}

// What does not show that the certificate's charge is in the log, and among the statement's entries.
function chargeFaults({ job }, settled, proven, stated, service) {
  const [id, { entry_seq: seq, head }] = settled;
  if (proven === undefined || stated === undefined) return [`log.json or statement.json lacks ${id}`];
  const [note, { entry, hash, path }] = [noteOf(proven.checkpoint), proven.proof];
  const wrong = [];
  if (note.origin !== `${LOG}/${id}` || !signs(service, note)) wrong.push(`log.json: the checkpoint of ${id} is not signed by this key`);
  if (entry !== seq || hash !== head || !includes(entry, hash, path, note)) wrong.push(`log.json: no proof that entry ${seq} of ${id} is in the checkpoint`);
  if (noteOf(stated.checkpoint).body !== note.body) wrong.push(`log.json and statement.json have different checkpoints of ${id}`);
  const charge = stated.entries[seq - 1];
  if (charge?.hash !== head || charge.job_id !== job || charge.kind !== "post") wrong.push(`the statement's entry ${seq} of ${id} is not the charge that the certificate names`);
  return wrong;
}

// Since version 3 a statement has signed terms: of this data set, with these ledgers, which begin with these entries.
function termsFaults({ version, dataset, terms, ledgers }, key) {
  if (version < 3) return [];
  if (version > 3) return [`a statement of version ${version}: read it with a newer verifier`];
  const { subject, predicate } = opened(terms, key, TERMS_TYPE);
  if (predicate.version !== 1) return [`terms of version ${predicate.version}: read them with a newer verifier`];
  const alone = dataset.id === predicate.dataset ? undefined : predicate.blocks.find(({ id }) => id === dataset.id);
  const [name, blocks] = alone ? [`${predicate.name}/${alone.label}`, [alone]] : [predicate.name, predicate.blocks];
  const wrong = [];
  if ((!alone && dataset.id !== predicate.dataset) || dataset.name !== name || dataset.unit !== predicate.unit) wrong.push("the terms are of another data set");
  const first = new Map(subject.map(({ name: ledger, digest }) => [ledger, digest.sha256]));
  const said = (list) => new Map(list.map(({ id, label }) => [id, label]));
  if (ledgers.length !== blocks.length || !isDeepStrictEqual(said(ledgers), said(blocks))) wrong.push("the ledgers are not those of the terms");
  if (ledgers.some(({ id, entries }) => entries[0]?.hash === undefined || first.get(`ledger ${id}`) !== entries[0].hash)) wrong.push("the terms are of other ledgers");
  if (!wrong.length) tellTerms(predicate);
  return wrong;
}

const GOVERNED = ["controller", "purposes", "legal_basis", "region", "retention", "contact"];

function tellTerms({ governance, grants, signed_at: at }) {
  for (const name of GOVERNED.filter((each) => governance?.[each]?.length)) console.log(`governance ${name}: ${[governance[name]].flat().join("; ")}`);
  for (const { key, access, purpose, permit, ends_at: end } of grants) {
    console.log(`grant      ${[`${key} may ${access}`, purpose && `for ${purpose}`, permit && `permit ${permit}`, end ? `until ${end}` : "without an end"].filter(Boolean).join(", ")}`);
  }
  console.log(`terms      signed at ${at}; ${governance ? "" : "no governance is declared; "}${grants.length} grants`);
}

// The statement on a data set, by itself.
function statement(path, trusted) {
  const document = JSON.parse(readFileSync(path, "utf8"));
  if (trusted === undefined) stop(2, "a statement holds no public key: give --public-key, from the service's owner");
  const raw = Buffer.from(trusted, "base64");
  if (raw.length !== 32) stop(2, "the public key is not 32 bytes in base64");
  const { dataset, ledgers } = document;
  console.log(`statement  on ${dataset.name} (${dataset.id}), of ${ledgers.length} ledgers`);
  const wrong = [...statementFaults(document, { name: LOG, kind: LOG_KEY, raw }), ...(ledgers[0]?.id === dataset.id ? [] : ["the first ledger is not the data set's own"])];
  for (const each of wrong) console.log(`FAULT      ${each}`);
  process.exitCode = wrong.length ? 1 : 0;
}

// The entries' own hashes are for `scrimp verify-egress`: they cover canonical JSON, in which Python writes the numbers.
function statementFaults({ ledgers, ...stated }, service) {
  const terms = termsFaults({ ledgers, ...stated }, keyOf(service.raw));
  return terms.concat(ledgers.flatMap(({ id, checkpoint, entries }) => {
    const note = noteOf(checkpoint);
    const wrong = note.origin !== `${LOG}/${id}` || !signs(service, note) ? [`statement.json: this key did not sign the checkpoint of ${id}`] : [];
    const root = rootOver(entries.map(({ hash }) => leafOf(hash)));
    return entries.length === note.size && root.equals(note.root) ? wrong : [...wrong, `statement.json: the entries of ${id} are not those of its checkpoint`];
  }));
}

// A certificate within a folder: signed, of this job, naming each file of the model.
function certificateFaults(document, manifest, subjects, key, raw) {
  const { subject, predicate } = opened(document.envelope, key);
  const wrong = isDeepStrictEqual(document.certificate, predicate) ? [] : ["certificate.json shows another certificate than the one that was signed"];
  if (predicate.job !== manifest.job || predicate.dataset.id !== manifest.dataset) wrong.push("the certificate is of another job or data set than the manifest says");
  const [named, model] = [subject, subjects.filter(({ name }) => name.startsWith("model/"))].map((each) => new Map(each.map(({ name, digest }) => [name.replace(/^model\//, ""), digest.sha256])));
  for (const [name, digest] of model) if (named.get(name) !== digest) wrong.push(`model/${name} is not a file that the certificate names`);
  for (const name of named.keys()) if (!name.includes("/") && !name.startsWith("ledger entry ") && !model.has(name)) wrong.push(`the folder lacks ${name}, which the certificate names`);
  return [...wrong, ...faults(predicate.dataset, predicate.ledger, raw, { checkpoint: false, witnesses: [], notes: [], proofs: [] })];
}

// An egress: the folder that `scrimp egress` writes.
function folder(path, trusted) {
  const at = (name) => JSON.parse(readFileSync(join(path, name), "utf8"));
  const document = at("certificate.json");
  const raw = Buffer.from(trusted ?? document.public_key, "base64");
  if (raw.length !== 32) stop(2, "the public key is not 32 bytes in base64");
  const [key, service] = [keyOf(raw), { name: LOG, kind: LOG_KEY, raw }];
  const { subject, predicate: manifest } = opened(at(MANIFEST), key, EGRESS_TYPE);
  console.log(`egress     ${manifest.number} of ${manifest.job} for ${manifest.recipient}, made at ${manifest.made_at}`);
  const wrong = fileFaults(path, subject, manifest.sizes);
  if (!wrong.length) {
    const [log, stated] = [at("log.json"), at("statement.json")];
    const { ledgers } = stated;
    const { ledger, ...body } = document.certificate;
    const settled = Array.isArray(ledger) ? ledger.map((each) => [each.dataset, each]) : [[body.dataset.id, ledger]];
    wrong.push(...certificateFaults(document, manifest, subject, key, raw), ...statementFaults(stated, service));
    if (stated.dataset.id !== manifest.dataset) wrong.push("the statement is of another data set than the manifest says");
    const of = (list, id) => list.find((each) => each.id === id);
    for (const each of settled) wrong.push(...chargeFaults(body, each, of(log.ledgers, each[0]), of(ledgers, each[0]), service));
  }
  for (const each of wrong) console.log(`FAULT      ${each}`);
  if (!wrong.length && trusted === undefined) console.log("signer     intact; signer not checked: give --public-key, from the service's owner");
  process.exitCode = wrong.length ? 1 : trusted === undefined ? 2 : 0;
}

function certificate() {
  const { envelope, files, key, named, raw, shown, trusted, wanted } = read();
  const statement = opened(envelope, key);
  if (shown !== undefined && !isDeepStrictEqual(shown.certificate, statement.predicate)) {
    stop(1, "FAULT  the document shows another certificate than the one that was signed");
  }
  const id = createHash("sha256").update(raw).digest("hex");
  if (shown !== undefined && (shown.public_key !== named || shown.algorithm !== "Ed25519" || envelope.signatures[0].keyid !== id)) {
    stop(1, "FAULT  the document names another key or algorithm than those that signed it");
  }
  tell(statement);
  const { dataset, ledger } = statement.predicate;
  const wrong = [...faults(dataset, ledger, raw, wanted), ...foreign(statement.predicate, wanted.notes)];
  for (const each of wrong) console.log(`FAULT      ${each}`);
  const found = files.map((path) => compared(path, statement.subject));
  const holds = found.every(Boolean) && !wrong.length;
  if (holds && trusted === undefined) console.log("signer     intact; signer not checked: give --public-key, from the service's owner");
  process.exitCode = !holds ? 1 : trusted === undefined ? 2 : 0;
}

try {
  const { files, "--public-key": [trusted] } = options();
  if (statSync(files[0]).isDirectory()) folder(files[0], trusted);
  else if (JSON.parse(readFileSync(files[0], "utf8")).ledgers) statement(files[0], trusted);
  else certificate();
} catch (error) {
  stop(2, `cannot read this as a certificate or an egress: ${error.message}`);
}
