"""Fits the weights of verdicts (crates/core/src/pipeline/attribute/verdict.rs) and measures them on rows that had no part in the fit.

    thresher eval claims.jsonl --json claims.json
    python models/train/verdict.py claims.json:1 spans.json:0.3

Each argument is a report of `thresher eval` on claims or on answers with labelled spans, and the weight of its rows. Needs numpy and scikit-learn.
Only rows that repeat their sources are read. The printed figures are those of the regression alone: numbers and negations are judged in Rust.
"""

import json
import sys

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

# The fields of `Evidence` (evidence.rs) that the regression reads.
COPIED = ["evidence", "copied"]
# As in verdict.rs: from these values on, a part is taken to repeat its sources.
COPIED_MIN, GATHERED_MIN = 0.6, 0.75
# The inverse strength of the L2 penalty on standardised features.
STRENGTH = 1.0
FOLDS = 5


def read(argument):
    path, _, weight = argument.rpartition(":")
    report = json.load(open(path, encoding="utf-8"))
    judged = report.get("judged")
    rows = judged["rows"] if judged else report["spans"]
    rows = [row for row in rows if row["evidence"] and is_copied(row["evidence"])]
    return [(report["data"], row["evidence"], row["truth"], float(weight)) for row in rows]


def is_copied(features):
    return features["copied"] >= COPIED_MIN or features["gathered"] >= GATHERED_MIN


def fit(rows):
    """Returns the bias and the weights on the features as they are."""
    x = np.array([[features[name] for name in COPIED] for _, features, _, _ in rows])
    y = np.array([truth for _, _, truth, _ in rows])
    weight = np.array([weight for _, _, _, weight in rows])
    mean, scale = x.mean(0), x.std(0) + 1e-9
    model = LogisticRegression(C=STRENGTH, max_iter=1000).fit((x - mean) / scale, y, sample_weight=weight)
    coefficients = model.coef_[0] / scale
    return model.intercept_[0] - coefficients @ mean, coefficients


def probability(weights, features):
    bias, coefficients = weights
    return 1 / (1 + np.exp(-(bias + coefficients @ [features[name] for name in COPIED])))


def report(name, values, truths):
    values, truths = np.array(values), np.array(truths)
    false = np.sort(values[~truths])
    recall = (values[truths] > false[len(false) - 1 - int(len(false) * 0.1)]).mean()
    bins = np.array_split(np.argsort(values, kind="stable"), 10)
    error = sum(abs(values[rows].mean() - truths[rows].mean()) * len(rows) for rows in bins) / len(values)
    auroc = roc_auc_score(truths, values)
    print(f"{name:<12} rows {len(values):>5}  AUROC {auroc:.3f}  recall at 10 % false acceptance {recall:.3f}  calibration error {error:.3f}")


def main():
    rows = [row for argument in sys.argv[1:] for row in read(argument)]
    # Rows of one answer follow each other, so that blocks of rows, not single rows, are held out.
    blocks = (np.arange(len(rows)) // 10) % FOLDS
    values = np.zeros(len(rows))
    for fold in range(FOLDS):
        weights = fit([row for row, block in zip(rows, blocks) if block != fold])
        for at in np.flatnonzero(blocks == fold):
            values[at] = probability(weights, rows[at][1])
    for name in dict.fromkeys(row[0] for row in rows):
        of_set = [at for at, row in enumerate(rows) if row[0] == name]
        report(name, values[of_set], [rows[at][2] for at in of_set])
    report("all", values, [row[2] for row in rows])
    bias, coefficients = fit(rows)
    print(f"bias {bias:.3f}")
    for name, coefficient in zip(COPIED, coefficients):
        print(f"    {name}: {coefficient:.3f}")


if __name__ == "__main__":
    main()
