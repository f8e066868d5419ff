"""Run evidently's report of drift with PSI: python monitoring_evidently.py REFERENCE CURRENT."""

import json
import resource
import sys
import time

import pandas as pd
from evidently import Report
from evidently.presets import DataDriftPreset


def main(reference: str, current: str) -> None:
    """Read two Parquet files, compare them, and print one line of JSON."""
    started = time.perf_counter()
    before, after = pd.read_parquet(reference), pd.read_parquet(current)
    Report([DataDriftPreset(method="psi")]).run(reference_data=before, current_data=after).dict()
    wall_s = round(time.perf_counter() - started, 3)
    peak_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    print(json.dumps({"rows": len(after), "wall_s": wall_s, "peak_mb": peak_mb}))


if __name__ == "__main__":
    main(*sys.argv[1:])
