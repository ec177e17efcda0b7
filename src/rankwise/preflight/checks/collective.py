"""collectives

A small job of its own: one rank per host (two on a single host) reduces, gathers and broadcasts known numbers, compares, and times an
all_reduce of 16 MiB. On gloo, and on NCCL too where every rank has a GPU. Skipped where the links have already shown what is wrong.

Fails with RW609 where a result is wrong, with RW114 where the ranks cannot connect; warns with RW610 where it moves less than a tenth of
what the slowest link does alone and less than 1 Gbit/s.
"""

from __future__ import annotations

from rankwise.preflight.facts import CheckedJob, Seen
from rankwise.preflight.measured import measured, rate_of
from rankwise.sizes import rate_text

GROUP = "collectives"
_SHARE, _ENOUGH = 0.1, 125e6


def judge(job: CheckedJob, seen: Seen) -> None:
    ran = job.collective
    if not ran or "blind" in ran:
        seen.blind[""] = str(ran.get("blind") or "it did not come to that")
        return
    for backend, answers in ran.items():
        wrong = {name: answer for name, answer in answers.items() if answer.get("wrong")}
        failed = {name: answer for name, answer in answers.items() if "error" in answer}
        if failed:
            name, answer = next(iter(failed.items()))
            summary = f"{backend} could not finish a collective: {len(failed)} rank{'s' * (len(failed) != 1)} failed"
            seen.add("RW114", summary, job.named(failed), certain=False, why=f"{name}: {answer['error']}")
        elif wrong:
            name, answer = next(iter(wrong.items()))
            seen.add("RW609", f"{backend} gives wrong results: {answer['wrong'][0]} on {name}", job.named(wrong))
        else:
            rate = min(answer["bytes_per_s"] for answer in answers.values())
            seen.values[backend] = f"{len(answers)} ranks right, all_reduce {rate_text(rate)}"
            slowest_link = min(map(rate_of, measured(job, "up")), default=0.0)
            if rate < min(_ENOUGH, slowest_link * _SHARE):
                summary = (
                    f"an all_reduce on {backend} moves {rate_text(rate)}, while the slowest link alone moves {rate_text(slowest_link)}"
                )
                seen.add("RW610", summary, ())
