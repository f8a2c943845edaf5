"""docs/verify.mjs in one warm Node: a process of its own for each call loads for 70 ms of processor time.

tests/e2e/test_blocks.py runs it as people do, and a test of attestations compares the two ways.
"""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

VERIFIER = Path(__file__).resolve().parents[1] / "docs" / "verify.mjs"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to run the verifier with")

# Runs the script anew for each line of words, and answers with its status and what it printed up to its exit. Ends with
# its caller.
WARM = """
const { pathToFileURL } = require("node:url");
const lines = require("node:readline").createInterface({ input: process.stdin });
const script = pathToFileURL(process.argv[1]).href;
let run;
const say = (name) => (...words) => { if (run.status === undefined) run[name] += words.join(" ") + "\\n"; };
[console.log, console.error] = [say("stdout"), say("stderr")];
process.exit = (status) => { run.status ??= status; throw new Error("it has exited"); };
(async () => {
  let number = 0;
  for await (const line of lines) {
    run = { stdout: "", stderr: "" };
    process.exitCode = 0;
    process.argv = [process.argv[0], process.argv[1], ...JSON.parse(line)];
    await import(`${script}?${number++}`).catch((error) => { run.status ??= 1; run.stderr ||= error.stack; });
    run.status ??= process.exitCode;
    process.stdout.write(JSON.stringify(run) + "\\n");
  }
  process.exitCode = 0;
})();
"""


def by_node(*words: object) -> subprocess.CompletedProcess[str]:
    """Runs `node docs/verify.mjs WORDS`."""
    arguments, node = [str(word) for word in words], _warm()
    assert node.stdin is not None and node.stdout is not None
    node.stdin.write(json.dumps(arguments) + "\n")
    node.stdin.flush()
    answer = json.loads(node.stdout.readline())
    return subprocess.CompletedProcess(arguments, answer["status"], answer["stdout"], answer["stderr"])


@cache
def _warm() -> subprocess.Popen[str]:
    command = ["node", "-e", WARM, str(VERIFIER)]
    node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(node.communicate)  # closes what it reads from
    return node
