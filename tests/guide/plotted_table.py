"""plotted_table.py DOCS: the table of guide/long_sequences.md has the values of the plot above it, long_sequences.svg."""

import re
import sys
from pathlib import Path


def curves(svg):
    """Values of each curve: pixels from the axis, scaled by the distance of two labels of the vertical axis of its panel."""
    labels = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="end" >([\d.]+)</text>', svg)
    for points in re.findall(r'<polyline[^>]*points="([^"]*)"', svg):
        pairs = [tuple(map(float, point.split(","))) for point in points.split()]
        axis = [(float(y) - 4, float(value)) for x, y, value in labels if 0 < pairs[0][0] - float(x) < 20]
        (zero, _), (one, value) = axis[0], axis[-1]
        yield [(zero - y) * value / (zero - one) for _, y in pairs]


def main(docs):
    plotted = list(curves((docs / "long_sequences.svg").read_text()))
    rows = re.findall(r"^\| (\d+) \| ([\d., ]+) MiB \| ([\d., ]+) s \| ([\d., ]+) \|$", (docs / "guide/long_sequences.md").read_text(), re.M)
    ticks = [1024, 2048, 4096, 8192]
    assert len(plotted) == 6 and len(rows) == 2, (len(plotted), len(rows))
    for tokens, *texts in rows:
        memory, seconds, speedups = ([float(number) for number in text.split(",")] for text in texts)
        drawn = [curve[ticks.index(int(tokens))] for curve in plotted]
        expected = drawn + [drawn[3] / drawn[4], drawn[3] / drawn[5]]
        for shown, value in zip(memory + seconds + speedups, expected, strict=True):
            if abs(shown - value) > 0.006 + 0.03 * value:
                sys.exit(f"{tokens} tokens: the table has {shown}, the plot {value:.3f}")


main(Path(sys.argv[1]))
