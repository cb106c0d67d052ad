#!/usr/bin/env python3
"""Forwards the log of a program in C, C++ or Fortran to Weights & Biases, while the program runs or afterwards.

    python3 log_to_wandb.py training.csv --project heat --follow 600

The first line of the log names the columns, one of them `step`. The program appends a line of numbers for each step and
flushes it. `--follow`: waits for more lines, and ends after this many seconds without one. WANDB_MODE=offline needs no
account; other options are those of the environment variables of wandb."""
import argparse
import sys
import time


def lines(path, follow):
    """The complete lines of a file that may still grow."""
    rest, waited = "", 0.0
    with open(path) as file:
        while True:
            rest += file.read()
            *complete, rest = rest.split("\n")
            yield from complete
            if complete:
                waited = 0.0
            elif waited >= follow:
                return
            else:
                time.sleep(0.2)
                waited += 0.2


def records(found):
    """(step, {name: number}) for each line after the first one."""
    names = [name.strip() for name in next(found, "").split(",")]
    if "step" not in names:
        sys.exit(f"expected a first line of names with `step`, for example step,loss; got {','.join(names)!r}")
    for number, line in enumerate(found, 2):
        try:
            values = dict(zip(names, map(float, line.split(",")), strict=True))
        except ValueError:
            sys.exit(f"line {number}: expected {len(names)} numbers ({','.join(names)}), got {line!r}")
        yield int(values.pop("step")), values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("--project", default="dtensor")
    parser.add_argument("--name", help="of the run")
    parser.add_argument("--follow", type=float, default=0, metavar="SECONDS")
    args = parser.parse_args()
    import wandb

    run = wandb.init(project=args.project, name=args.name)
    for step, values in records(lines(args.log, args.follow)):
        run.log(values, step=step)
    run.finish()


if __name__ == "__main__":
    main()
