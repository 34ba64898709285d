"""Train, inspect and use a run from Python.

python examples/api.py
"""

import tempfile
from pathlib import Path

import fedwild

if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp()) / "run"
    run = fedwild.run(data="digits", clients=5, rounds=8, seed=1, out=folder, settings=["score.name=energy"])

    print(f"AUROC {run.metrics['auroc']:.3f}, closed accuracy {run.metrics['closed_accuracy']:.3f}")
    for event in run.events():
        if event["event"] == "round":
            print(f"round {event['index']}: loss {event['loss']:.3f}")

    x = run.experiment.dataset.x_test[:5]
    answers = run.predict(x)
    print(answers.labels, answers.unknown.tolist(), answers.threshold)

    same = fedwild.resume(folder)  # a finished run is returned as it is
    print(same.path, same.metrics == run.metrics)
