"""From data to certified predictions and a report, in Python: scikit-learn's handwritten digits.

Needs `pip install 'mithridate[train]'`. Run it as `python examples/quickstart.py [INSTANCES]`; it writes
certificate.json and report.html into the current folder. More instances give larger radii and take longer.
"""

import sys

from mithridate import CertifiedClassifier
from mithridate.data.named import load_named


def main(instances: int) -> None:
    """Fit, predict, certify, report."""
    train, test = load_named("digits")
    x_test, y_test = test.x, test.y

    classifier = CertifiedClassifier(instances=instances, classes=range(10))
    classifier.fit(train.x, train.y)
    print(f"{classifier.score(x_test, y_test):.1%} of {len(x_test)} predictions are correct.")

    certificate = classifier.certify(x_test, y_test)
    radii = certificate.round_radii()
    for radius, share in zip(radii, certificate.accuracy(y_test, radii), strict=True):
        print(f"{share:.1%} are correct, and stay so for up to {radius} training examples added or removed.")
    print(f"The baseline, always saying the commonest digit, is {certificate.summary()['baseline']:.1%}.")

    certificate.save("certificate.json")
    certificate.report(pictures=x_test, certificate_path="certificate.json").write("report.html")
    print("Written to report.html and certificate.json; check it with: mithridate verify certificate.json")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
