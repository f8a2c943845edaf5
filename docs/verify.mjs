// Verifies a Scrimp certificate on any machine with Node 18 or newer, without packages and without the service.
//
//   node verify.mjs CERTIFICATE --public-key KEY [--require-checkpoint] [--witness KEY ...]
//                   [--checkpoint FILE ...] [--proof FILE ...] [FILE ...]
//   node verify.mjs EGRESS --public-key KEY [--public-key KEY ...] [--job ID] [--recipient NAME] [--since TIME]
//                   [--checkpoint FILE ...] [--witness KEY ...]
//   node verify.mjs CERTIFICATE|EGRESS|STATEMENT --root KEY --history FILE [--history-number N] [--dated FILE ...] ...
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
// --root KEY, --history FILE, in place of --public-key: the service's signing keys as its root signed them. The signer's key must be
// there, at the time of what it signed. A revoked key may have signed any date: a --witness must have cosigned the checkpoints before, and
// --dated FILE must prove that it saw the signature before (scrimp certificates date); one for each document. Without: exit status 2.
// --history-number N: you know history N; an older one is refused, for it may lack a revocation.
//
// EGRESS: the folder that `scrimp egress` writes. What `scrimp verify-egress` checks of it is checked: the manifest's signature,
// every file, the certificate, both its signatures, the proofs, and the statement: its chain, balances and budgets. Numbers are
// hashed as Python wrote them. After a rotation of the signing key name both keys.
//
// CERTIFICATE may be the statement on a data set, as `scrimp ledger statement --to` writes it. Then each ledger's checkpoint
// and the tree over its entries are checked, and since version 3 the terms: governance and grants, which are printed.
//
// Exit status: 0 if all holds and the given key signed it; 1 if something does not hold; 2 if the input cannot be read, or
// if no key was given: the document is then intact, but anybody can sign one; or if nothing dates what a revoked key signed, or
// if a statement's ledger goes on from one that is not stated.
import { createHash, createPublicKey, verify } from "node:crypto";
import { closeSync, lstatSync, openSync, readdirSync, readFileSync, readSync, statSync } from "node:fs";
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
       [--checkpoint FILE ...] [--proof FILE ...] [FILE ...]
       node verify.mjs EGRESS --public-key KEY ... [--job ID] [--recipient NAME] [--since TIME] [--checkpoint FILE ...]
       [--witness KEY ...]
       node verify.mjs CERTIFICATE|EGRESS|STATEMENT --root KEY --history FILE [--history-number N] [--dated FILE ...] ...`;
const GRAPH = "the graph at whose weights training began";
const ONE = ["--job", "--recipient", "--since"];
const ROOT = ["--root", "--history", "--history-number"];
const HISTORY_TYPE = "application/vnd.scrimp.signing-keys+json";

function options() {
  const found = { "--public-key": [], "--witness": [], "--checkpoint": [], "--proof": [], "--job": [], "--recipient": [], "--since": [], "--root": [], "--history": [], "--history-number": [], "--dated": [], required: false, files: [] };
  for (let words = process.argv.slice(2); words.length; words = words.slice(1)) {
    if (words[0] === "--require-checkpoint") found.required = true;
    else if (words[0] in found && words[0].startsWith("--")) {
      if (words.length < 2) stop(2, USAGE);
      found[words[0]].push(words[1]);
      words = words.slice(1);
    } else if (words[0].startsWith("--")) stop(2, USAGE);
    else found.files.push(words[0]);
  }
  if (!found.files.length || [...ONE, ...ROOT].some((name) => found[name].length > 1)) stop(2, USAGE);
  return found;
}

function read() {
  const { required, files: [path, ...files], ...found } = options();
  if (found["--public-key"].length > 1 || ONE.some((name) => found[name].length)) stop(2, USAGE);
  const document = JSON.parse(readFileSync(path, "utf8"));
  const shown = document.payload === undefined ? document : undefined;
  const envelope = shown === undefined ? document : document.envelope;
  if (!envelope) stop(2, "this certificate has no envelope: an earlier version of the service issued it");
  const periods = historyOf(found);
  const trusted = periods === undefined ? found["--public-key"][0] : keyIn(periods, envelope, shown);
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
  return { envelope, files, shown, named, key: keyOf(raw), raw, trusted, wanted, trust: { periods, witnesses: wanted.witnesses, dates: datesOf(found) } };
}

// The signing keys that the root named, each with its times; undefined if the reader names no root.
function historyOf({ "--root": roots, "--history": files, "--history-number": numbers, "--public-key": keys }) {
  if (!roots.length && !files.length && !numbers.length) return undefined;
  if (roots.length !== 1 || files.length !== 1 || keys.length) stop(2, USAGE);
  const [raw, envelope, least] = [Buffer.from(roots[0], "base64"), JSON.parse(readFileSync(files[0], "utf8")), Number(numbers[0] ?? 0)];
  if (raw.length !== 32) stop(2, "the root's key is not 32 bytes in base64");
  if (!Number.isInteger(least)) stop(2, USAGE);
  if (envelope.signatures.length !== 1 || !signedBy(envelope, keyOf(raw))) stop(2, "the root did not sign this history");
  const document = JSON.parse(Buffer.from(envelope.payload, "base64").toString("utf8"));
  if (envelope.payloadType !== HISTORY_TYPE || document.version !== 1) stop(2, "this is not a history of signing keys that this version reads");
  if (!(document.number >= least)) stop(2, `this is history ${document.number}, older than ${least}, which you know: it may lack a revocation`);
  if (!document.keys.length) stop(2, "the root names no key");
  return document.keys;
}

// Whom the reader believes, for a folder or a statement: keys, the root's periods of them if it named them, and witnesses.
function trustOf(wanted) {
  const periods = historyOf(wanted);
  const keys = periods?.map((each) => each.public_key) ?? wanted["--public-key"];
  if (keys.some((each) => Buffer.from(each, "base64").length !== 32)) stop(2, "the public key is not 32 bytes in base64");
  return { keys, periods, witnesses: wanted["--witness"].map(witnessOf), dates: datesOf(wanted) };
}

// The key of a history that a certificate names, or that signed an envelope.
function keyIn(periods, envelope, shown) {
  const found = periods.find(({ public_key }) => (shown ? shown.public_key === public_key : signedBy(envelope, keyOf(Buffer.from(public_key, "base64")))));
  if (found === undefined) stop(1, "FAULT  the root never named the key that signed this");
  return found.public_key;
}

const timeOf = (text) => {
  const found = Date.parse(text);
  if (Number.isNaN(found)) throw new Error(`this is not a time: ${text}`);
  return found;
};

// When a witness first cosigned a checkpoint of a ledger with all these entries, in milliseconds since 1970; Infinity: none says.
function seenAt({ origin, entries, own }, witnesses, notes) {
  const known = [...(own == null ? [] : [noteOf(own)]), ...notes].filter((each) => each.origin === origin && each.size >= entries);
  return Math.min(...known.flatMap((note) => witnesses.flatMap((witness) => cosignedAt(witness, note))));
}

// The proofs of when something was signed.
const datesOf = ({ "--dated": files }) => files.map((each) => JSON.parse(readFileSync(each, "utf8"))).flatMap((each) => each.dates ?? [each]).map(({ checkpoint, entry, path }) => ({ note: noteOf(checkpoint), entry, path }));

// When a witness first cosigned a checkpoint with an envelope's signature, in milliseconds since 1970; Infinity: no proof says.
function datedAt({ payload, payloadType, signatures }, publicKey, dates, witnesses) {
  const own = signatures.filter((each) => signedBy({ payload, payloadType, signatures: [each] }, keyOf(Buffer.from(publicKey, "base64"))));
  const digests = own.map(({ sig }) => sha256(Buffer.from(sig, "base64"), Buffer.from(payload, "base64")).toString("hex"));
  const proven = dates.filter(({ note, entry, path }) => digests.some((digest) => includes(entry, digest, path, note)));
  return Math.min(...proven.flatMap(({ note }) => witnesses.flatMap((witness) => cosignedAt(witness, note))));
}

const doubts = []; // what nothing at hand shows or refutes: exit status 2

// Why a key is not believed for what it signed, an envelope about these ledgers: each with its entries, its own checkpoint, and the
// time of the last entry, if that came with it. `what` it is, for a doubt.
function trustFaults({ periods, witnesses, dates }, publicKey, signed, ledgers, notes, envelope, what = "") {
  for (const witness of witnesses) {
    const unseen = ledgers.find((each) => seenAt(each, [witness], notes) === Infinity);
    if (unseen) return [`${witness.name} did not cosign the checkpoint of ${unseen.entries} entries of ${unseen.origin}`];
  }
  if (periods === undefined) return [];
  const period = periods.find((each) => each.public_key === publicKey);
  if (period === undefined) return ["the root never named the key that signed this"];
  if (signed !== undefined && timeOf(signed) < timeOf(period.from)) return [`issued at ${signed}, before its key signed: from ${period.from}`];
  const times = [signed, ...ledgers.map(({ last }) => last)].filter((each) => each !== undefined);
  const late = period.until === null ? undefined : times.find((each) => timeOf(each) >= timeOf(period.until));
  if (late !== undefined) return [`issued at ${late}, after its key signed: until ${period.until}`];
  if (period.revoked_from === null) return [];
  const revoked = `its key is revoked from ${period.revoked_from} on (${period.reason})`;
  const seen = Math.max(...ledgers.map((each) => seenAt(each, witnesses, notes)));
  if (!ledgers.length || !(seen < timeOf(period.revoked_from))) {
    const unseen = !ledgers.length || seen === Infinity ? "no witness that you trust says when its checkpoint was there" : "no witness saw its checkpoint before that";
    // By its own word it was signed when others may have had the key; or else a witness that is not at hand may know.
    if (times.some((each) => timeOf(each) >= timeOf(period.revoked_from))) return [`${revoked}, and ${unseen}`];
    doubts.push(`${what}${revoked}, and ${unseen}`);
  } else if (!(envelope != null && datedAt(envelope, publicKey, dates, witnesses) < timeOf(period.revoked_from))) {
    doubts.push(`${what}signed by a revoked key (from ${period.revoked_from} on: ${period.reason}); nothing dates it (--dated): whoever has the key can sign this too`);
  }
  return [];
}

function tellDoubts() {
  for (const each of doubts) console.log(`DOUBT      ${each}`);
}

// The same of a certificate's key.
function certificateTrust(trust, publicKey, { dataset, issued_at, ledger }, notes, envelope, what) {
  const ledgers = Array.isArray(ledger) ? ledger : [{ dataset: dataset.id, ...ledger }];
  const covered = ledgers.map((each) => ({ origin: `${LOG}/${each.dataset ?? dataset.id}`, entries: each.entry_seq, own: each.checkpoint }));
  return trustFaults(trust, publicKey, issued_at, covered, notes, envelope, what);
}

const coveredBy = (ledgers) =>
  ledgers.map(({ id, checkpoint, entries }) => ({ origin: `${LOG}/${id}`, entries: entries.length, own: checkpoint, last: entries.at(-1).created_at }));

const keyOf = (raw) => createPublicKey({ key: Buffer.concat([ED25519_SPKI, raw]), format: "der", type: "spki" });

// "DSSEv1", then the length and the bytes of the type and of the payload: what is signed.
function encoded(type, payload) {
  const kind = Buffer.from(type, "utf8");
  return Buffer.concat([Buffer.from(`DSSEv1 ${kind.length} `), kind, Buffer.from(` ${payload.length} `), payload]);
}

function signedBy({ payload, payloadType, signatures }, key) {
  const signed = encoded(payloadType, Buffer.from(payload, "base64"));
  return signatures.some((each) => verify(null, signed, key, Buffer.from(each.sig, "base64")));
}

function opened(envelope, key, predicateType = PREDICATE_TYPE) {
  const payload = Buffer.from(envelope.payload, "base64");
  const [what, about] = { [EGRESS_TYPE]: ["manifest", "an egress"], [TERMS_TYPE]: ["terms", "a data set's terms"] }[predicateType] ?? ["certificate", "a certificate"];
  if (!signedBy(envelope, key)) stop(1, `FAULT  this key did not sign the ${what}`);
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
  if (predicate.graph_sha256) console.log(`graph      ${predicate.graph_sha256}  ${GRAPH}`);
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

// When a witness cosigned a checkpoint, in milliseconds since 1970: each time that its signature covers.
function cosignedAt({ name, kind, raw }, note) {
  const own = note.signatures.filter((each) => each.name === name && each.blob.length >= 12);
  const valid = own.filter((each) => signs({ name, kind, raw }, { ...note, signatures: [each] }));
  return valid.map(({ blob }) => Number(blob.readBigUInt64BE(4)) * 1000);
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

// Whether a file is one that the certificate names: delivered, or the graph that the submitter sent.
function compared(path, { subject, predicate }) {
  const digest = createHash("sha256").update(readFileSync(path)).digest("hex");
  const graph = predicate.graph_sha256 === undefined ? [] : [{ name: GRAPH, digest: { sha256: predicate.graph_sha256 } }];
  const named = [...subject, ...graph].find((each) => each.digest.sha256 === digest);
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
  const same = isDeepStrictEqual([...signed.keys()].sort(), Object.keys(sizes).sort());
  const wrong = same ? [] : ["the manifest states other sizes than files"];
  for (const name of signed.keys()) if (!found.includes(name)) wrong.push(`${name} is missing`);
  for (const name of found) {
    const path = join(folder, name);
    if (lstatSync(path).isSymbolicLink()) wrong.push(`${name} is a link`);
    else if (name === MANIFEST) continue;
    else if (!signed.has(name)) wrong.push(`${name} is not in the manifest`);
    else if (lstatSync(path).size !== sizes[name] || digestOf(path) !== signed.get(name)) wrong.push(`${name} is not the file that was signed`);
  }
  return wrong;
}

// A model may be larger than a buffer.
function digestOf(path) {
  const [hash, file, block] = [createHash("sha256"), openSync(path, "r"), Buffer.alloc(1 << 20)];
  for (let size = readSync(file, block); size; size = readSync(file, block)) hash.update(block.subarray(0, size));
  closeSync(file);
  return hash.digest("hex");
}

// JSON in which every string has the prefix "s" and every number, as it was written, is a string with the prefix "n".
const exactly = (text) => JSON.parse(text.replace(/"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*/g, (each) => (each[0] === '"' ? `"s${each.slice(1)}` : `"n${each}"`)));

// Canonical JSON of this: sorted names, no spaces, and numbers as they were written. That is what Python signs and hashes.
function canonical(value) {
  if (typeof value === "string") return value[0] === "n" ? value.slice(1) : JSON.stringify(value.slice(1));
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return String(value);
  return `{${Object.keys(value).sort().map((name) => `${canonical(name)}:${canonical(value[name])}`).join(",")}}`;
}

function plain(value) {
  if (typeof value === "string") return value[0] === "n" ? Number(value.slice(1)) : value.slice(1);
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name.slice(1), plain(each)]));
}

// RFC 6962, section 2.1: the root over these leaves.
function rootOver(leaves) {
  if (leaves.length < 2) return leaves[0] ?? sha256();
  let split = 1;
  while (split * 2 < leaves.length) split *= 2;
  return node(rootOver(leaves.slice(0, split)), rootOver(leaves.slice(split)));
}
const beginsWith = (kept, entries) => kept.size <= entries.length && rootOver(entries.slice(0, kept.size).map(({ hash }) => leafOf(hash))).equals(kept.root);

// What does not show that the certificate's charge is in the log, and among the statement's entries.
function chargeFaults({ job, study, charge: said }, [id, { entry_seq: seq, head }], proven, stated, service) {
  const [note, { entry, hash, path }] = [noteOf(proven.checkpoint), proven.proof];
  const wrong = [];
  if (note.origin !== `${LOG}/${id}` || !signs(service, note)) wrong.push(`log.json: the checkpoint of ${id} is not signed by the manifest's key`);
  if (entry !== seq || hash !== head || !includes(entry, hash, path, note)) wrong.push(`log.json: no proof that entry ${seq} of ${id} is in the checkpoint`);
  if (stated === undefined) return [...wrong, `the statement lacks ${id}, which the job was charged on`];
  if (noteOf(stated.checkpoint).body !== note.body) wrong.push(`log.json and statement.json have different checkpoints of ${id}`);
  const charge = stated.entries.find((each) => each.seq === seq);
  if (charge?.hash !== head || charge.job_id !== job || charge.kind !== "post") wrong.push(`the statement's entry ${seq} of ${id} is not the charge that the certificate names`);
  else if (study == null && (charge.train !== said.train || charge.holdout !== said.holdout)) wrong.push(`the statement's entry ${seq} of ${id} charges another amount than the certificate says`);
  return wrong;
}

const need = (holds, otherwise) => { if (!holds) throw new Error(otherwise); };
const ACCOUNTS = ["train", "holdout"];
const both = (made) => Object.fromEntries(ACCOUNTS.map((name) => [name, made(name)]));

// Adds up a ledger's entries. Throws where one is not what an honest ledger has after those before it.
function summed(entries) {
  let [budget, spent, held, closed, movedTo] = [both(() => 0), both(() => 0), both(() => 0), false, undefined];
  const [holds, carried] = [new Map(), new Map()];
  entries.forEach((entry, index) => {
    const { memo, kind, job_id: job } = entry;
    const the = (holds, otherwise) => need(holds, `entry ${index + 1} ${otherwise}`);
    const [amounts, released] = [both((name) => entry[name]), both((name) => entry[`${name}_released`])];
    the(ACCOUNTS.every((name) => Number.isSafeInteger(amounts[name]) && amounts[name] >= 0 && Number.isSafeInteger(released[name]) && released[name] >= 0), "has a negative amount");
    the((kind === "open") === (index === 0), "opens the ledger again, or does not open it");
    const releases = ACCOUNTS.some((name) => released[name]);
    if (kind === "post" || kind === "void") {
      const [study, id] = [memo.hold, memo.hold ?? job];
      const left = holds.get(id);
      the(left !== undefined, "settles a hold that does not exist");
      holds.delete(id);
      if (study == null) the(ACCOUNTS.every((name) => amounts[name] + released[name] === left[name]), "spends and releases another amount than was held");
      else {
        the(kind === "post" && !releases, "releases a part of its study's hold");
        holds.set(id, both((name) => left[name] - amounts[name]));
        the(ACCOUNTS.every((name) => holds.get(id)[name] >= 0), "draws more than is left of its study's hold");
      }
      the(kind === "post" || ACCOUNTS.every((name) => !amounts[name]), "spends, although it gives its hold back");
      if (kind === "post" && "joined" in memo) carried.set(memo.joined, amounts);
      held = both((name) => held[name] - amounts[name] - released[name]);
      spent = both((name) => spent[name] + amounts[name]);
    } else {
      the(["open", "cap", "hold"].includes(kind) && !releases, "releases without a hold");
      if (kind === "hold") {
        the(!closed && !holds.has(job), "holds what may not be held");
        holds.set(job, amounts);
        held = both((name) => held[name] + amounts[name]);
      } else {
        the(!(closed && "joined_into" in memo), "closes a ledger that is closed");
        [budget, closed, movedTo] = [amounts, closed || "joined_into" in memo, memo.joined_into ?? movedTo];
      }
    }
    the(isDeepStrictEqual(memo.balance, both((name) => ({ budget: budget[name], spent: spent[name], held: held[name] }))), "states balances that do not follow from the entries");
    the(ACCOUNTS.every((name) => spent[name] + held[name] <= budget[name]), "overspends the budget");
  });
  const { filter, order, cap_delta: delta, whole_delta: whole } = entries[0].memo;
  for (const { seq, kind, memo, ...amounts } of entries) {
    if (kind !== "open" && kind !== "cap") continue;
    const worth = worthOf(filter, order, delta, Math.max(amounts.train, amounts.holdout));
    need(worth <= memo.cap_epsilon * (1 + 1e-6), `entry ${seq} grants a budget that is worth ε = ${worth}, not ${memo.cap_epsilon}`);
  }
  return { terms: JSON.stringify([filter, order ?? null, delta, whole ?? null]), filter, order, delta, whole, closed, movedTo, carried, taken: both((name) => spent[name] + held[name]) };
}

// A ledger that moved to another filter, with all that it had spent and held: a Gaussian mechanism with μ has divergence
// α μ²/2 at order α. Amounts are exact: α is a ratio of whole numbers.
function moveHolds(first, second) {
  need(first.filter === "gdp" && second.filter === "rdp" && first.closed, "a ledger moved to another one between filters for which no bound is known");
  let [over, under] = [second.order, 1n];
  for (; !Number.isInteger(over); under *= 2n) over *= 2;
  for (const name of ACCOUNTS) {
    const charged = BigInt(second.carried.get(first.id)?.[name] ?? 0);
    need(charged * 2000n * under >= BigInt(over) * BigInt(first.taken[name]), "less was carried to a ledger than the one before it had spent");
  }
}

// That the ledgers can be those of one data set.
function togetherHold(sums) {
  const byId = new Map(sums.map((each) => [each.id, each]));
  const [moved, stay] = [sums.filter(({ movedTo }) => byId.has(movedTo)), sums.filter(({ movedTo }) => !byId.has(movedTo))];
  for (const each of moved) moveHolds(each, byId.get(each.movedTo));
  need(stay.every(({ whole, movedTo }) => whole == null || movedTo == null || movedTo === "retired"), "a ledger moved to one that is not stated: what was spent since is missing");
  need(new Set(stay.map(({ terms }) => terms)).size === 1, "the ledgers have different filters, orders or δ: they are not of one data set");
  const within = ({ delta, whole }) => (delta + stay[0].delta) * (1 - 1e-9) <= (whole ?? 0);
  need(moved.every(within), "the δ's of two filters are more than the cap's: they are not of one data set");
  const reached = new Set(sums.map(({ movedTo }) => movedTo));
  for (const { id } of sums.filter(({ id, whole, filter }) => whole != null && filter === "rdp" && !reached.has(id))) {
    doubts.push(`${id} goes on from a ledger that is not stated: nothing shows that it took over all that was spent there. Ask for the statement of the data set, or of the block`);
  }
}

// Since version 3 a statement has signed terms: of this data set, with these ledgers, which begin with these entries.
function termsFaults({ version, dataset, terms, ledgers }, key) {
  if (version < 3) return [];
  const { subject, predicate } = opened(terms, key, TERMS_TYPE);
  if (predicate.version !== 1) return ["the terms have an unknown version: read them with a newer verifier"];
  const alone = dataset.id === predicate.dataset ? undefined : predicate.blocks.find(({ id }) => id === dataset.id);
  const own = [dataset.id, ...ledgers[0].entries.map(({ memo }) => memo.joined_into)]; // of one block alone: with the ledger that it moved to
  const [name, blocks] = alone ? [`${predicate.name}/${alone.label}`, predicate.blocks.filter(({ id }) => own.includes(id))] : [predicate.name, predicate.blocks];
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

// The statement on a data set, by itself. Of the trusted keys its signer's is that of the first checkpoint.
function statement(path, wanted) {
  const trust = trustOf(wanted);
  if (!trust.keys.length) stop(2, "a statement holds no public key: give --public-key, from the service's owner");
  const text = readFileSync(path, "utf8");
  const document = JSON.parse(text);
  console.log(`statement  on ${document.dataset.name} (${document.dataset.id}), of ${document.ledgers.length} ledgers`);
  try {
    need(document.ledgers.length, "the first ledger is not the data set's own");
    const first = noteOf(document.ledgers[0].checkpoint);
    const named = trust.keys.find((each) => signs(serviceOf(each), first));
    need(named !== undefined, "the key did not sign the checkpoint");
    const stated = statementFaults(text, serviceOf(named));
    const [otherwise] = statementTrust(trust, named, stated, []);
    need(otherwise === undefined, otherwise);
    tellDoubts();
    process.exitCode = doubts.length ? 2 : 0;
  } catch (error) {
    console.log(`FAULT      ${error.message}`);
    process.exitCode = 1;
  }
}

const serviceOf = (publicKey) => ({ name: LOG, kind: LOG_KEY, raw: Buffer.from(publicKey, "base64") });
const statementTrust = (trust, publicKey, { ledgers, signed, terms }, notes, what) => trustFaults(trust, publicKey, signed, coveredBy(ledgers), notes, terms, what);

// What a budget in the filter's units is worth at δ.
function worthOf(filter, order, delta, amount) {
  if (amount <= 0) return 0;
  if (filter !== "gdp") return Math.max(0, amount * 1e-9 + Math.log1p(-1 / order) - (Math.log(delta) + Math.log(order)) / (order - 1));
  const mu = Math.sqrt(amount * 1e-12);
  const lost = (epsilon) => {
    const tail = phi(-mu / 2 - epsilon / mu);
    return phi(mu / 2 - epsilon / mu) - (tail > 0 ? Math.exp(epsilon + Math.log(tail)) : 0);
  };
  let [low, high] = [0, 1];
  while (lost(high) > delta) high *= 2;
  for (let step = 0; step < 200; step += 1) {
    const middle = (low + high) / 2;
    if (lost(middle) > delta) low = middle;
    else high = middle;
  }
  return high;
}

// The normal distribution function: a series near 0, and a continued fraction in the tails (Abramowitz and Stegun 26.2.11, 26.2.14).
function phi(x) {
  const [size, density] = [Math.abs(x), Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI)];
  if (size < 3) {
    let [term, sum] = [x, x];
    for (let odd = 3; Math.abs(term) > Math.abs(sum) * 1e-17; odd += 2) {
      term *= (x * x) / odd;
      sum += term;
    }
    return 0.5 + density * sum;
  }
  let fraction = size;
  for (let depth = 200; depth > 0; depth -= 1) fraction = size + depth / fraction;
  return x < 0 ? density / fraction : 1 - density / fraction;
}

// A statement's ledgers by id, with their faults: signatures, chain, tree, balances, and that they are of one data set.
function statementFaults(text, service) {
  const exact = exactly(text);
  const document = plain(exact);
  need([1, 2, 3, 4].includes(document.version), "this is a statement of an unknown version: read it with a newer verifier");
  const [ledgers, written] = document.version === 1 ? [[{ ...document, id: document.dataset.id, label: "first" }], [exact]] : [document.ledgers, exact.sledgers];
  const sums = ledgers.map(({ id, checkpoint, entries }, index) => {
    const note = noteOf(checkpoint);
    need(signs(service, note), "the key did not sign the checkpoint");
    let before = sha256(Buffer.from(`scrimp/ledger/v1:${id}`)).toString("hex");
    entries.forEach((entry, at) => {
      const { shash: _, ...said } = written[index].sentries[at];
      const follows = entry.seq === at + 1 && entry.prev_hash === before && entry.dataset_id === id;
      need(follows && sha256(Buffer.from(canonical(said))).toString("hex") === entry.hash, `entry ${at + 1} does not fit into the chain`);
      before = entry.hash;
    });
    const covered = entries.length && note.origin === `${LOG}/${id}` && note.size === entries.length && beginsWith(note, entries);
    need(covered, "the entries are not those of the checkpoint");
    return { id, ...summed(entries) };
  });
  need(ledgers.length && document.dataset.id === ledgers[0].id, "the first ledger is not the data set's own");
  const distinct = (name) => new Set(ledgers.map((each) => each[name])).size === ledgers.length;
  need(distinct("id") && distinct("label"), "a block is stated twice");
  togetherHold(sums);
  need((document.version === 4) === sums.some(({ whole }) => whole != null), "version 4 is of a data set with two filters, and of no other");
  const [otherwise] = termsFaults(document, keyOf(service.raw));
  need(otherwise === undefined, otherwise);
  const signed = document.version < 3 ? undefined : JSON.parse(Buffer.from(document.terms.payload, "base64").toString("utf8")).predicate.signed_at;
  return { dataset: document.dataset.id, ledgers, signed, terms: document.terms };
}

// A certificate within a folder: both its signatures hold, under a key that is trusted, and it names each file of the model.
function certificateFaults(text, manifest, subjects, keys) {
  const document = JSON.parse(text);
  const raw = Buffer.from(document.public_key, "base64");
  const key = keyOf(raw);
  const body = document.certificate;
  if (!keys.includes(document.public_key)) return ["the certificate is signed by a key that is not trusted: name that too, if the service's key was rotated"];
  const bare = Buffer.from(canonical(exactly(text).scertificate));
  const wrong = document.algorithm === "Ed25519" && verify(null, bare, key, exact(document.signature)) ? [] : ["certificate.json: its signature does not hold"];
  if (body.job !== manifest.job || body.dataset.id !== manifest.dataset) wrong.push("the certificate is of another job or data set than the manifest says");
  const model = new Map(subjects.filter(({ name }) => name.startsWith("model/")).map(({ name, digest }) => [name.slice("model/".length), digest.sha256]));
  if (document.envelope == null) { // issued before there were envelopes: it names the weights alone
    if (body.version !== 1) wrong.push("certificate.json has no envelope");
    if (body.model_sha256 !== null && ![...model.values()].includes(body.model_sha256)) wrong.push("the folder lacks the model that the certificate names");
    return wrong;
  }
  const { subject, predicate } = opened(document.envelope, key);
  if (!isDeepStrictEqual(body, predicate)) wrong.push("certificate.json shows another certificate than the one that was signed");
  const named = new Map(subject.map(({ name, digest }) => [name, digest.sha256]));
  for (const [name, digest] of model) if (named.get(name) !== digest) wrong.push(`model/${name} is not a file that the certificate names`);
  for (const name of named.keys()) if (!name.includes("/") && !name.startsWith("ledger entry ") && !model.has(name)) wrong.push(`the folder lacks ${name}, which the certificate names`);
  return [...wrong, ...faults(body.dataset, body.ledger, raw, { checkpoint: false, witnesses: [], notes: [], proofs: [] })];
}

// What does not hold of a folder whose files are those of the manifest.
function contentFaults(read, [envelope, manifest], subjects, trust, signer, notes) {
  const [wrong, service] = [certificateFaults(read("certificate.json"), manifest, subjects, trust.keys), serviceOf(signer)];
  const { certificate: body, public_key: issuer, envelope: issued } = JSON.parse(read("certificate.json"));
  let stated;
  try {
    stated = statementFaults(read("statement.json"), service);
    const [otherwise] = statementTrust(trust, signer, stated, notes, "statement.json: ");
    need(otherwise === undefined, otherwise);
  } catch (error) {
    return [...wrong, `statement.json: ${error.message}`];
  }
  const ledgers = new Map(stated.ledgers.map((each) => [each.id, each]));
  if (stated.dataset !== manifest.dataset) wrong.push("the statement is of another data set than the manifest says");
  const [covers, covered] = [stated.ledgers, manifest.ledgers].map((some) => Object.fromEntries(some.map(({ id, entries }) => [id, entries.length ?? entries])));
  if (!isDeepStrictEqual(covers, covered)) wrong.push("the statement covers other entries than the manifest says");
  const log = new Map(JSON.parse(read("log.json")).ledgers.map((each) => [each.id, each]));
  const charged = new Map(Array.isArray(body.ledger) ? body.ledger.map((each) => [each.dataset, each]) : [[body.dataset.id, body.ledger]]);
  if (!isDeepStrictEqual([...log.keys()].sort(), [...charged.keys()].sort())) wrong.push("log.json has other ledgers than the certificate");
  for (const each of charged) if (log.has(each[0])) wrong.push(...chargeFaults(body, each, log.get(each[0]), ledgers.get(each[0]), service));
  for (const kept of notes) {
    const own = ledgers.get(kept.origin.slice(LOG.length + 1));
    if (own === undefined || !kept.origin.startsWith(`${LOG}/`) || !signs(service, kept)) wrong.push(`the checkpoint of ${kept.origin} that was given is of no ledger here, or of another signer`);
    else if (kept.size > own.entries.length) wrong.push(`the folder is older than the checkpoint that was given: ${own.entries.length} of ${kept.size} entries`);
    else if (!beginsWith(kept, own.entries)) wrong.push(`the statement contradicts the checkpoint of ${kept.size} entries that was given`);
  }
  const known = [...notes, ...stated.ledgers.map(({ checkpoint }) => noteOf(checkpoint))];
  wrong.push(...trustFaults(trust, signer, manifest.made_at, coveredBy(stated.ledgers), notes, envelope, "manifest.json: ").map((each) => `manifest.json: ${each}`));
  wrong.push(...certificateTrust(trust, issuer, body, known, issued, "certificate.json: ").map((each) => `certificate.json: ${each}`));
  return wrong;
}

// An egress: the folder that `scrimp egress` writes.
function folder(path, wanted) {
  if (wanted.required || wanted["--proof"].length || wanted.files.length > 1) stop(2, USAGE);
  const read = (name) => readFileSync(join(path, name), "utf8");
  const trust = trustOf(wanted);
  const trusted = trust.keys;
  const keys = trusted.length ? trusted : [JSON.parse(read("certificate.json")).public_key];
  const envelope = JSON.parse(read(MANIFEST));
  const signer = keys.find((each) => signedBy(envelope, keyOf(Buffer.from(each, "base64"))));
  if (signer === undefined) stop(1, "FAULT  no trusted key signed the manifest");
  const { subject, predicate: manifest } = opened(envelope, keyOf(Buffer.from(signer, "base64")), EGRESS_TYPE);
  if (manifest.version !== 1) stop(1, "FAULT  the manifest has an unknown version: read it with a newer verifier");
  console.log(`egress     ${manifest.number} of ${manifest.job} for ${manifest.recipient}, made at ${manifest.made_at}`);
  const wrong = fileFaults(path, subject, manifest.sizes);
  for (const name of ["job", "recipient"]) {
    const [expected] = wanted[`--${name}`];
    if (expected !== undefined && manifest[name] !== expected) wrong.push(`it is an egress with ${name} ${manifest[name]}, not ${expected}`);
  }
  const [since] = wanted["--since"];
  if (since !== undefined && Number.isNaN(Date.parse(since))) stop(2, `this is not a time: ${since}`);
  if (since !== undefined && !(Date.parse(manifest.made_at) >= Date.parse(since))) wrong.push(`it was made at ${manifest.made_at}, before ${since}: an earlier egress`);
  const notes = wanted["--checkpoint"].map((each) => noteOf(readFileSync(each, "utf8")));
  if (!wrong.length) wrong.push(...contentFaults(read, [envelope, manifest], subject, { ...trust, keys }, signer, notes));
  for (const each of wrong) console.log(`FAULT      ${each}`);
  tellDoubts();
  if (!wrong.length && !trusted.length) console.log("signer     intact; signer not checked: give --public-key, from the service's owner");
  process.exitCode = wrong.length ? 1 : trusted.length && !doubts.length ? 0 : 2;
}

function certificate() {
  const { envelope, files, key, named, raw, shown, trust, trusted, wanted } = read();
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
  const wrong = [...faults(dataset, ledger, raw, wanted), ...foreign(statement.predicate, wanted.notes), ...(trust.periods ? certificateTrust(trust, named, statement.predicate, wanted.notes, envelope) : [])];
  for (const each of wrong) console.log(`FAULT      ${each}`);
  const found = files.map((path) => compared(path, statement));
  const holds = found.every(Boolean) && !wrong.length;
  tellDoubts();
  if (holds && trusted === undefined) console.log("signer     intact; signer not checked: give --public-key, from the service's owner");
  process.exitCode = !holds ? 1 : trusted === undefined || doubts.length ? 2 : 0;
}

try {
  const wanted = options();
  if (statSync(wanted.files[0]).isDirectory()) folder(wanted.files[0], wanted);
  else if (JSON.parse(readFileSync(wanted.files[0], "utf8")).ledgers) statement(wanted.files[0], wanted);
  else certificate();
} catch (error) {
  stop(2, `cannot read this as a certificate or an egress: ${error.message}`);
}
