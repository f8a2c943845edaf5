"""A certificate in plain words, in the order of NIST SP 800-226, from the certificate alone.

Nothing is asked of the service. What an attacker can find is computed from the printed events (scrimp.privacy_loss).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from scrimp.privacy_loss import Curve

Json = Mapping[str, Any]
Section = tuple[str, list[str]]

RELATIONS = {"add_or_remove_one": "adding or removing one"}
FALSE_POSITIVES = (0.001, 0.01, 0.1)
DELTAS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
TF32 = ", whose products round their factors to 11 digits"
FILTERS = {"rdp": "a Rényi filter", "gdp": "a Gaussian-DP filter"}
METHODS = {
    "gdp": "exact",
    "pld": "a privacy loss distribution on a grid of {:g}",
    "rdp": "a bound by Rényi divergences, at the best order",
}


def explained(body: Json) -> list[Section]:
    """The sections, each with its lines.

    Args:
        body: the certificate's; of a job or of a study.

    Raises:
        KeyError, TypeError, ValueError: it is no certificate, or it has events of an unknown kind.
    """
    return [
        *([("Governance", governance(body))] if body.get("governance") else []),
        ("Unit of privacy", _unit(body)),
        ("Privacy parameters", _parameters(body)),
        ("Mechanism", _mechanism(body)),
        ("What it read", _read(body)),
        ("What left the service", _released(body)),
        ("Trust model", _trust(body)),
        ("Composition", _composition(body)),
        ("Numbers and randomness", _numerics(body)),
        ("What ran", _environment(body)),
        ("How to read it", _reading(body)),
        *([("What its audit found", _audit(body["audit"]))] if body.get("audit") else []),
        ("Not covered", not_covered(body)),
    ]


GOVERNED = (
    ("controller", "controller"),
    ("purposes", "may be used for"),
    ("legal_basis", "legal basis"),
    ("region", "region"),
    ("retention", "kept"),
    ("contact", "contact"),
)


def governance(body: Json) -> list[str]:
    """Who answers for the data, and what this job was for; empty if its certificate does not say."""
    declared = body.get("governance")
    if declared is None:
        return []
    rows = [(label, declared["dataset"].get(name)) for name, label in GOVERNED]
    use = declared["use"] or {}
    rows += [("this job's purpose", use.get("purpose")), ("its permit", use.get("permit"))]
    return [f"{label}: {'; '.join(value) if isinstance(value, list) else value}" for label, value in rows if value]


def thing_of(body: Json) -> str:
    """What is protected: a record, or a user."""
    return "record" if body["unit"] == "example" else str(body["unit"])


def _unit(body: Json) -> list[str]:
    lines = [
        f"one {thing_of(body)}: neighbouring data sets differ by {RELATIONS.get(body['relation'], body['relation'])}"
    ]
    if body["unit"] == "user":
        lines.append(f"a user has at most {body['records_per_unit']} records, which are bounded together")
    return lines


def _parameters(body: Json) -> list[str]:
    epsilon, accountant = body["epsilon"], body["accountant"]
    method = METHODS[accountant["name"]].format(accountant["grid"])
    lines = [
        f"ε = {rounded_up(epsilon['value'])} at δ = {epsilon['delta']:g}, of the whole plan "
        f"({accountant['name']}: {method})"
    ]
    steps = body["steps"]
    if steps["started"] < steps["planned"]:
        lines.append(
            f"it stopped after {steps['started']} of {steps['planned']} steps; ε is that of the plan all the same"
        )
    return lines


def _mechanism(body: Json) -> list[str]:
    study = body.get("study")
    if study is not None:
        lines = [f"a private study: {len(study['runs'])} trials, each with its own mechanism, together within ε"]
        final = study["final_run_epsilon"]
        return lines + ([f"its final trial alone has ε = {rounded_up(final['value'])}"] if final is not None else [])
    sampling, mechanism = body["sampling"], body["mechanism"]
    training, thing = mechanism["training"], thing_of(body)
    if mechanism.get("statistics"):
        return _sums(mechanism["statistics"]["queries"], thing, training["noise_multiplier"])
    batches = {
        "full_batch": "every step takes all records",
        "poisson": f"a step takes each {thing} with probability {sampling['sample_rate']:.4g}",
        "cyclic": f"each {thing} takes part once in every {training.get('cycle')} steps, in a secret group",
    }[sampling["kind"]]
    twice = (training.get("delayed") or {}).get("variant") == "extra_query"
    begins = (
        ", where C begins at this length and follows a noisy count that is paid for" if training.get("adaptive") else ""
    )
    lines = [
        f"{training['steps']} steps of clipped gradients' sums with Gaussian noise; {batches}",
        f"what one {thing} adds is at most {body['max_grad_norm']:g} long ({training['clipping']} clipping{begins}); "
        f"the noise's standard deviation is {body['gradient_noise_multiplier']:.6g} times that",
    ]
    if mechanism.get("selection"):
        most_runs = len(mechanism["selection"]["weights"])
        best = f"the best, by its score, of a secret number of runs, at most {most_runs}"
        lines.insert(0, f"{best}: its weights, learning rate and score left, and nothing of the others. A run is:")
    if training.get("truncation"):
        largest = training["truncation"]["largest_batch"]
        lines.append(f"of a larger draw, {largest} are chosen at random; the chance of that is paid for")
    if training.get("noise"):
        lines.append(
            f"each step takes back {training['noise']['decay']:g} of the noise of the step before; what a {thing} adds "
            "then shows in later steps too, and the noise is scaled up for that"
        )
    if twice:
        lines.append("most steps query their batch a second time, and are charged for it")
    labels = (("mean", "the features' mean"), ("frequencies", "how many users have each item"))
    released_before = [label for name, label in labels if mechanism.get(name)]
    released_before += [each["what"] for each in mechanism["releases"] if "account" not in each]
    lines += [f"before the first step, {label}, once, with noise" for label in released_before]
    scores = [each for each in mechanism["releases"] if "account" in each]
    return lines + [f"{each['what']} on the {each['account']} account, with noise" for each in scores]


def _sums(queries: list[Json], thing: str, sigma: float) -> list[str]:
    """The one release of a job without a model: each query's numbers, what moves them, and their noise."""
    lines = [
        f"one release of sums over all records, with Gaussian noise: noise multiplier {sigma:.6g} for all together"
    ]
    for query in queries:
        at_most = math.sqrt(query["quarters"] / 4.0)
        lines.append(
            f"{_asked(query)}: a {thing}'s record adds at most {at_most:.4g}, share {query['share']:.4g} of μ²"
        )
    return lines


def _asked(query: Json) -> str:
    return f"{query['kind']} {', '.join(query['columns'])}".strip()


def _released(body: Json) -> list[str]:
    study = body.get("study")
    graph = f", of the submitter's own graph, SHA-256 {body['graph_sha256']}" if body.get("graph_sha256") else ""
    lines = _of_one(body["released"], f"the model's weights, SHA-256 {body['model_sha256']}{graph}")
    for run in study["runs"] if study is not None else ():
        lines += [f"trial {run['job']}: {each}" for each in _of_one(run["released"], "its weights")]
    lines += _answers(body)
    return lines or ["nothing: no weights and no scores"]


def _answers(body: Json) -> list[str]:
    """What a job without a model released: its answers, query by query, or its rows."""
    if body["released"].get("rows"):
        tables = len(body["mechanism"]["statistics"]["queries"])
        return [f"synthetic rows drawn from {tables} noisy two-way tables, SHA-256 {body['rows_sha256']}"]
    if not body["released"].get("answers"):
        return []
    questions = "; ".join(map(_asked, body["mechanism"]["statistics"]["queries"]))
    return [f"answers of one noisy release ({questions}), SHA-256 {body['answers_sha256']}"]


def _of_one(released: Json, weights: str) -> list[str]:
    lines = [weights] if released["weights"] else []
    for metric in released["metrics"]:
        lines.append(f"{metric['name']} on the {metric['on']} part after step {metric['step']}, {_noise(metric)}")
    return lines


def _noise(number: Json) -> str:
    """How a number was released. Most of those that cost nothing more still carry the noise of their release."""
    if number["released_by"] == "public_data":
        return "exactly, as it is public"
    noise = f"with noise of ± {number['std']:.2g}" if number["std"] else "as it is"
    if number["released_by"] == "post_processing":
        return f"{noise}: computed from noisy numbers that were charged"
    return noise


def _trust(body: Json) -> list[str]:
    model = body.get("threat_model")
    if model is not None:
        sees = (f"{model['trust']}: {line}" if not at else line for at, line in enumerate(model["sees"]))
        return [*sees, *(f"assumed: {line}" for line in body["assumptions"])]
    lines = [
        "central: the service sees the records; whoever reads what left it learns only what ε and δ allow",
        "this holds if the service ran what is printed here; the signature says who vouches for that",
    ]
    side = body["side_information"]
    if side is not None:
        lines.append(f"the data set {side['name']} was used without noise: its owner declared it public")
    return lines


def _composition(body: Json) -> list[str]:
    cap = body["cap"]
    issued = f"when this was issued the cap was ε = {cap['epsilon']} at δ = {cap['delta']}"
    return [*(body.get("composition") or _unsigned_composition(body)), issued, *_entries(body)]


def _unsigned_composition(body: Json) -> list[str]:
    """Of a certificate before version 3."""
    kind, ledger = body["filter"]["kind"], body["ledger"]
    subject = f"all jobs on the ledger {body['dataset']['id']}"
    if isinstance(ledger, list):
        labels = ", ".join(each["block"] for each in ledger)
        subject = f"for each of the blocks {labels}: all jobs on its ledger"
    return [
        f"{subject} together stay within its cap ({FILTERS.get(kind, kind)}), also if each is chosen "
        "after the results of others, and if analysts collude",
        "the data set's owner may raise the cap: its ledger has the largest one",
    ]


def _entries(body: Json) -> list[str]:
    """Where the job was charged: on the data set's ledger, or in full on that of each block that it read."""
    ledger = body["ledger"]
    if not isinstance(ledger, list):
        return [f"this job is entry {ledger['entry_seq']} of the data set's ledger"]
    return [
        "each record lies in one block, and each block that this job read was charged its whole cost",
        *(f"this job is entry {each['entry_seq']} of the ledger of block {each['block']}" for each in ledger),
        "it read no other block: records there lost nothing by it",
    ]


def declared(body: Json) -> tuple[int, int]:
    """How many units the owner declared: to train on, L/q, and held out for scores. A study's trials: the most.

    Raises:
        KeyError: it is no certificate of private data.
    """
    study = body.get("study")
    mechanisms = [body["mechanism"]] if study is None else [run["mechanism"] for run in study["runs"]]
    train = holdout = 0
    for mechanism in mechanisms:
        training = mechanism["training"]
        units = training["expected_batch_size"] / training["sample_rate"] * (training.get("cycle") or 1)
        train = max(train, round(units))
        holdout = max(
            [holdout, *(int(release.get("records") or 0) for release in mechanism["releases"] if "account" in release)]
        )
    return train, holdout


def declared_in_words(body: Json) -> str:
    """How many units the owner declared in what was read."""
    train, holdout = declared(body)
    return f"{train:,} to train on" + (f", {holdout:,} held out for scores" if holdout else "")


def blocks_in_words(body: Json) -> list[str]:
    """The blocks that a job on private data read. A data set that never grew has none: the job read it whole."""
    ledger = body["ledger"]
    if not isinstance(ledger, list):
        return ["the whole data set: it had no blocks"]
    return [*(f"block {each['block']} ({each['dataset']})" for each in ledger), "no other block"]


def _read(body: Json) -> list[str]:
    if body["epsilon"] is None:
        return ["a public data set"]
    return [
        f"{thing_of(body)}s as the owner declared them, a public number: {declared_in_words(body)}",
        *blocks_in_words(body),
    ]


def _products(numerics: Json) -> str:
    return TF32 if numerics.get("fp32_precision") == "tf32" else ""


def _numerics(body: Json) -> list[str]:
    """Of a study those of its trials, each once."""
    study = body.get("study")
    reports = [body.get("numerics")] if study is None else [run.get("numerics") for run in study["runs"]]
    lines = [
        f"passes in {each['passes']}{_products(each)}, sums in {each['sums']}; rounding is paid for: the noise is "
        f"larger by {each['sensitivity_slack'] - 1.0:.1g} of itself"
        for each in reports
        if each is not None
    ]
    if not lines:
        return ["this certificate does not say in which numbers it was computed"]
    return [
        "noise: a Gaussian over the reals, the sum correctly rounded to a grid; keys are secret and used once",
        *dict.fromkeys(lines),
    ]


def _reading(body: Json) -> list[str]:
    """For the account with the larger loss: training part and hold-out are disjoint."""
    try:
        loss = loss_of(body)
    except ModuleNotFoundError:
        return ["for what an attacker can find where batches are sampled: pip install 'scrimp-client[audit]'"]
    lines = [
        f"an attacker who knows all but one {thing_of(body)}, and accuses {100 * alpha:g} % of the absent ones "
        f"wrongly, finds at most {percent(rate)} of those who took part"
        for alpha, rate in loss.attacks.items()
    ]
    readers = ", ".join(
        f"{'unknown' if value is None else rounded_up(value)} at {delta:g}" for delta, value in loss.epsilons.items()
    )
    return [*lines, f"ε at other δ: {readers}"] if lines else []


def _environment(body: Json) -> list[str]:
    """The signed release and workers; of a certificate before version 3 the release alone."""
    lines = [f"release {body['code_version']}"]
    for environment in body.get("environment", ()):
        hashes = [
            f"{label} {environment[name]}"
            for label, name in (("code", "code"), ("packages", "packages"))
            if name in environment
        ]
        lines.append(", ".join([environment["device"], f"torch {environment['torch']}", *hashes]))
    return lines


class Loss(NamedTuple):
    """What a certificate's events lose.

    Attributes:
        attacks: false accusations α → the share of those who took part that an attacker finds at most.
        epsilons: δ → ε; None if the grid cannot resolve it.
    """

    attacks: Mapping[float, float]
    epsilons: Mapping[float, float | None]


def loss_of(body: Json) -> Loss:
    """The signed profile; of a certificate before version 3 it is computed here. Empty if nothing was released.

    Raises:
        ModuleNotFoundError: batches are sampled, the profile is not signed, and numpy is not installed.
        ValueError: an event that is none, or a distribution too large to compute.
    """
    signed = body.get("profile")
    if signed is not None:
        attacks = {each["false_positive"]: each["true_positive"] for each in signed["attacks"]}
        return Loss(attacks, {each["delta"]: each["epsilon"] for each in signed["epsilons"]})
    return recomputed_loss(body)


def recomputed_loss(body: Json) -> Loss:
    """By the client's own accountant, from the printed events; see `loss_of`."""
    trees = [tree for tree in body["events"].values() if tree is not None and tree["events"]]
    curves = [Curve.of(tree, min(DELTAS)) for tree in trees]
    if not curves:
        return Loss({}, {})
    rates = [curve.attack(FALSE_POSITIVES) for curve in curves]
    values = [max(each) for each in zip(*(curve.epsilons(DELTAS) for curve in curves), strict=True)]
    return Loss(
        {alpha: max(each[alpha] for each in rates) for alpha in FALSE_POSITIVES},
        {delta: value if math.isfinite(value) else None for delta, value in zip(DELTAS, values, strict=True)},
    )


def _audit(audit: Json) -> list[str]:
    trained = audit.get("kind") == "records"
    lines = [
        f"{audit['statement']}, at δ = {audit['charged']['delta']:g}: a lower bound on what the steps lost, from the "
        "published canaries; never an upper one",
        f"of {audit['canaries']} synthetic {'records' if trained else 'canaries'} public coins put {audit['included']} "
        f"in; of {audit['guesses']} guesses who was in, {audit['right']} were right",
    ]
    if audit["mu_at_least"] is not None:
        lines.append(f"as a Gaussian mechanism the steps have a μ of at least {audit['mu_at_least']:.3f}")
    if audit["exceeded"]:
        lines.append("THE STEPS LOST MORE THAN THEIR MECHANISM ALLOWS: do not rely on this certificate")
    return lines


def not_covered(body: Json) -> list[str]:
    """What the guarantee is not about: signed; said here of a certificate before version 3."""
    if "threat_model" in body:
        return list(body["threat_model"]["not_covered"])
    lines = [
        "how long the job ran: its duration depends on the true number of records",
        "what was declared public: counts, classes, column names, public hold-outs, pretrained parts",
        "what a model's reader infers about people in general: that would be learned without any one of them",
    ]
    if body["unit"] == "example":
        lines.append("several records of one person: each is protected by itself")
    return lines


def rounded_up(value: float) -> str:
    """To three places, never shown smaller."""
    if not math.isfinite(value):
        return "unknown"
    return f"{math.ceil(value * 1e3 - 1e-9) / 1e3:g}"


def percent(share: float) -> str:
    """A share in percent, never shown smaller."""
    return f"{math.ceil(share * 1e4) / 1e2:g} %"
