"""Charges a data set of Scrimp for a histogram that OpenDP computes. Needs `pip install scrimp-client opendp`.

    python examples/charge_opendp.py URL KEY DATASET < ages.txt

One age a line, one line a person. The budget is held before OpenDP sees an age, and spent before anything is shown.
"""

import sys

import opendp.prelude as dp

import scrimp

SCALE = 10.0  # of the Laplace noise; one person more changes one count by 1
DECADES = list(range(0, 100, 10))


def main(url: str, key: str, dataset: str) -> None:
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance()
    histogram = space >> dp.t.then_count_by_categories(categories=DECADES) >> dp.m.then_laplace(scale=SCALE)
    with scrimp.Client(url, key) as client:
        claim = {"kind": "laplace", "scale": SCALE}
        charge = client.charges.reserve(dataset, claim, unit="example", attested="OpenDP: ages by decade")
        try:
            ages = [int(line) // 10 * 10 for line in sys.stdin]
        except ValueError:
            client.charges.void(charge.id, "the input was no list of ages: nothing was answered")
            raise
        counts = histogram(ages)
        client.charges.post(charge.id)
    print(dict(zip([*DECADES, "other"], counts, strict=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
