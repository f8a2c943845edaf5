"""Faults planted in a real worker's attempts: the audit finds each, by what the service hands out alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scrimp.audit.audit_report import notes, verdict
from scrimp.audit.audited_kinds import chosen
from scrimp.audit.run import Audit, Report
from tests.e2e.cluster import Cluster

CANARIES, TIMEOUT_S = 8000, 600.0


@pytest.fixture(scope="module")
def faulty(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with this worker alone."""
    cluster.stop("worker")
    cluster.start_faulty_worker()
    yield cluster
    cluster.stop("worker")


def audited(cluster: Cluster, fault: str, kinds: str) -> Report:
    with cluster.client() as client:
        return Audit(client, chosen(kinds), CANARIES, name=fault, timeout_s=TIMEOUT_S).run()


@pytest.mark.nightly  # by day the fault in tests/lifecycle/test_audited.py, and the verdict in tests/canaries
def test_noise_of_four_fifths_is_found(faulty: Cluster) -> None:
    """Claim: noise × 0.8 is found from outside
    Now: found
    """
    report = audited(faulty, "less-noise", "dp_sgd")
    (result,) = report.results
    assert not report.passed and "VIOLATION" in verdict(report)
    assert result.finding.lower_mu > result.charged_mu and not result.problems


@pytest.mark.nightly  # as the fault of the noise, above
def test_records_clipped_to_twice_the_norm_are_found(faulty: Cluster) -> None:
    """Claim: a record clipped to 2 C is found
    Now: found
    """
    report = audited(faulty, "twice-the-clip", "clip automatic")
    (result,) = report.results
    assert not report.passed and result.finding.lower_mu > 1.5 * result.charged_mu
    assert any("δ is at least" in note for note in notes(report))


@pytest.mark.nightly  # by day in process: tests/canaries/test_graph.py
def test_a_node_that_one_too_many_reads_is_found(faulty: Cluster) -> None:
    report = audited(faulty, "a-reader-too-many", "gcn")
    (result,) = report.results
    assert not report.passed and result.finding.lower_mu > result.charged_mu and not result.problems


@pytest.mark.nightly  # as dp_sgd's, above
def test_dp_adamwosm_s_noise_of_half_is_found(faulty: Cluster) -> None:
    """Its first moment forgets: four fifths of the noise would need more canaries."""
    report = audited(faulty, "half-noise", "dp_adamwosm")
    (result,) = report.results
    assert not report.passed and result.finding.lower_mu > result.charged_mu and not result.problems


@pytest.mark.nightly  # as the fault of the noise, above
def test_noise_that_two_jobs_share_is_found(faulty: Cluster) -> None:
    """Claim: noise that two jobs share is found
    Now: found
    """
    report = audited(faulty, "shared-noise", "dp_sgd,clip per_layer")
    # Each job by itself has the noise that it was charged for.
    assert [result.passed for result in report.results] == [True, True]
    (pair,) = report.pairs
    assert not report.passed and not pair.passed
    assert any("share noise" in note for note in notes(report))


@pytest.mark.nightly  # by day tests/canaries counts scores
def test_an_uncharged_score_is_found(faulty: Cluster) -> None:
    """Claim: an uncharged score is found
    Now: found
    """
    report = audited(faulty, "uncharged-scores", "score loss")
    (result,) = report.results
    assert not report.passed
    # By the list of what was released, and by the scores themselves.
    assert any("released 22 times, and charged for 11" in problem for problem in result.problems)
    assert not result.finding.stands and result.finding.lower_mu > result.charged_mu


@pytest.mark.nightly  # by day in process: tests/canaries/test_neighbours.py
@pytest.mark.parametrize("fault", ["by-place", "by-place-and-packed"])
@pytest.mark.parametrize("kind", ["network", "network dp_zo"])
def test_records_that_move_others_are_found_where_kernels_tell_places_apart(
    faulty: Cluster, fault: str, kind: str
) -> None:
    """The kernel alone is no fault: records have rows of their own."""
    report = audited(faulty, fault, kind)
    (result,) = report.results
    guesses = result.finding.guesses
    assert guesses is not None and guesses.trials == 32 and not result.problems
    packed = fault == "by-place-and-packed"
    assert report.passed is not packed, list(notes(report))
    assert (guesses.epsilon(result.delta) > result.epsilon) is packed


@pytest.mark.nightly  # an honest service passes in test_audit.py
def test_the_same_worker_without_a_fault_passes(faulty: Cluster) -> None:
    report = audited(faulty, "honest", "dp_sgd,clip per_layer,score loss")
    assert report.passed, list(notes(report))
