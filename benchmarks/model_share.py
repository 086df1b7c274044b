"""What imagined rows cost: products, and times as multiples of those without, by share.

    python benchmarks/model_share.py --json benchmarks/model_share.jsonl

MaxInfoSAC with the light ensemble, one update per step; interleaved in one process, best of many repeats.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from maxinforl.experiments.speed import TimedAgent, best_times
from maxinforl.settings import Settings

SHARES = (0.0, 0.05, 0.25)


def ratios(env: str, repeats: int) -> list[dict[str, Any]]:
    agents = {share: TimedAgent(Settings(algo="maxinfo-sac", env=env, model_share=share)) for share in SHARES}
    calls: dict[str, Callable[[], Any]] = {}
    for share, agent in agents.items():
        calls |= {f"{share} update": agent.update, f"{share} step": agent.step}
    for call in calls.values():
        call()
        call()
    ms = best_times(calls, repeats, 0.05, [agent.move for agent in agents.values()])
    for agent in agents.values():
        agent.trainer.close()
    rows = []
    for share in SHARES:
        own = {f"{part}_ms": round(ms[f"{share} {part}"], 3) for part in ("update", "step")}
        against = {part: round(ms[f"{share} {part}"] / ms[f"0.0 {part}"], 3) for part in ("update", "step")}
        rows.append({"env": env, "share": share, "gflop": round(agents[share].gflop, 4)} | own | against)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=150)
    parser.add_argument("--envs", nargs="+", default=["pendulum-hanging", "dmc/cheetah-run"])
    args = parser.parse_args()
    rows = [row for env in args.envs for row in ratios(env, args.repeats)]
    for row in rows:
        print(row)
    if args.json is not None:
        args.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
